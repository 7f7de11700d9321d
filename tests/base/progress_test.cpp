#include "base/terminal/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "base/human.h"

namespace brrr {
namespace {

/// A stream in memory and a clock that the test turns.
class ProgressTest : public testing::Test {
 protected:
  ProgressTest() : stream_(::open_memstream(&text_, &size_)) {}
  ~ProgressTest() override {
    std::fclose(stream_);
    std::free(text_);
  }
  ProgressOptions options(bool terminal, int64_t total, int width = 100) {
    ProgressOptions o;
    o.total = total;
    o.out = stream_;
    o.is_terminal = terminal;
    o.colour = false;
    o.width = width;
    o.now = [this] { return time_; };
    return o;
  }
  /// What was written since the last call.
  std::string written() {
    std::fflush(stream_);
    std::string out(text_ + read_, size_ - read_);
    read_ = size_;
    return out;
  }
  double time_ = 1000;

 private:
  char* text_ = nullptr;
  size_t size_ = 0, read_ = 0;
  std::FILE* stream_;
};

/// Columns of a line: code points, without escape sequences and carriage returns.
int columns_of(const std::string& line) {
  int n = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      while (line[i] != 'm' && line[i] != 'K') ++i;
      continue;
    }
    if (line[i] != '\r' && (static_cast<unsigned char>(line[i]) & 0xc0) != 0x80) ++n;
  }
  return n;
}

const StepFigures kFigures{2.45312, 9.8e-4, 1.0249, 21.27, 36012.4, 0.0042};

TEST_F(ProgressTest, PlainLinesAtTheLoggingIntervalOnly) {
  Progress p(options(false, 2000));
  time_ += 3;  // compiling: not part of the estimate
  p.update(1, kFigures);
  time_ += 2.13;
  p.update(99, kFigures);
  EXPECT_EQ(written(), "");
  p.log(100, kFigures);
  EXPECT_EQ(
      written(),
      "step 100/2000 | loss 2.4531 | lr 9.8e-04 | norm 1.02 | 21.3 ms | 36,012 tok/s | wait 0.4% | "
      "eta 0:41\n");
  p.message("saved checkpoint-000100");
  EXPECT_EQ(written(), "saved checkpoint-000100\n");
  p.log(2000, {.loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(written(), "step 2000/2000 | loss nan | eta 0:00\n");
  p.finish();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressTest, BytesPrintByThemselvesWhenAsked) {
  ProgressOptions o = options(false, 45'600'000);
  o.label = "encode";
  o.bytes = true;
  o.plain_interval_seconds = 10;
  Progress p(o);
  p.update(0);
  time_ += 9;
  p.update(9'000'000);
  EXPECT_EQ(written(), "");
  time_ += 1;
  p.update(12'300'000);
  EXPECT_EQ(written(), "encode 12.3 MB / 45.6 MB | 1.23 MB/s | eta 0:27\n");
  time_ += 1;
  p.update(13'000'000);
  EXPECT_EQ(written(), "");
}

// The first steps of a run say little about the last: no estimate is better than a wrong one.
TEST_F(ProgressTest, NoEstimateBeforeItIsWorthSomething) {
  for (const bool terminal : {false, true}) {
    Progress p(options(terminal, 2000));
    written();
    const auto shows_eta = [&](int64_t done, double seconds) {
      time_ += seconds;
      p.log(done, kFigures);
      return written().find("eta") != std::string::npos;
    };
    EXPECT_FALSE(shows_eta(1, 60)) << "one step, which may have compiled";
    EXPECT_FALSE(shows_eta(100, 1.5)) << "many steps, but in no time";
    EXPECT_TRUE(shows_eta(101, 0.6));
    Progress slow(options(terminal, 2000));
    slow.log(1, kFigures);
    time_ += 100;
    slow.log(5, kFigures);
    EXPECT_EQ(written().find("eta"), std::string::npos) << "four steps since the first";
    time_ += 25;
    slow.log(6, kFigures);
    EXPECT_NE(written().find("eta 13:50:50"), std::string::npos);
  }
}

TEST_F(ProgressTest, LinesThatAreAskedForStandAboveTheBar) {
  ProgressOptions o = options(true, 2000, 79);
  o.lines = true;
  Progress p(o);
  p.log(10, {.loss = 1.0});
  const std::string first = written();
  EXPECT_TRUE(first.starts_with("step 10/2000 | loss 1.0000\n\rstep ")) << first;
  p.log(20, {.loss = 0.5});
  EXPECT_TRUE(written().starts_with("\r\x1b[Kstep 20/2000 | loss 0.5000\n\rstep "));
}

TEST_F(ProgressTest, UnknownTotalHasNoEstimate) {
  Progress plain(options(false, 0));
  plain.log(7, {.loss = 1.0});
  EXPECT_EQ(written(), "step 7 | loss 1.0000\n");
  Progress bar(options(true, 0));
  bar.update(7, {.loss = 1.0});
  EXPECT_EQ(written(), "\rstep  7  loss 1.0000  0:00\x1b[K");
  bar.finish();
}

TEST_F(ProgressTest, BarRedrawsAtMostTenTimesASecond) {
  Progress p(options(true, 2000));
  int draws = 0;
  for (int i = 1; i <= 1000; ++i) {
    time_ += 0.001;
    p.update(i, kFigures);
    draws += !written().empty();
  }
  EXPECT_GE(draws, 9);
  EXPECT_LE(draws, 11);
  p.finish();
  EXPECT_EQ(written().back(), '\n');
}

TEST_F(ProgressTest, TheLineOfABar) {
  Progress p(options(true, 2000, 79));
  p.update(0);
  written();
  time_ += 21;
  p.update(1000, kFigures);
  // 79 columns less the last one: no room for the wait, and 13 are left for the bar, half full.
  EXPECT_EQ(
      written(),
      "\rstep ━━━━━━╸──────   50%  1000/2000  loss 2.4531  36,012 tok/s  eta 0:21  0:21\x1b[K");
}

TEST_F(ProgressTest, NeverWiderThanTheTerminal) {
  for (int width = 1; width <= 200; ++width) {
    for (const bool colour : {false, true}) {
      ProgressOptions o = options(true, 2000, width);
      o.colour = colour;
      Progress p(o);
      p.update(0);
      time_ += 5;
      written();
      p.update(1234, kFigures);
      const std::string line = written();
      EXPECT_LT(columns_of(line), std::max(width, 2)) << width << ": " << line;
      if (width >= 80) {
        EXPECT_NE(line.find("━"), std::string::npos) << width << ": " << line;
      }
      // The time that is left and the speed are worth more than a bar.
      if (width >= 28) {
        EXPECT_NE(line.find("eta 0:03"), std::string::npos) << width << ": " << line;
      }
      if (width >= 42) {
        EXPECT_NE(line.find("36,012 tok/s"), std::string::npos) << width << ": " << line;
      }
      if (!colour && line.find("━") != std::string::npos) {
        EXPECT_NE(line.find("61%  1234/2000  loss 2.4531"), std::string::npos) << line;
      }
      if (width >= 100) {
        EXPECT_NE(line.find("wait 0.4%"), std::string::npos) << line;
      }
      EXPECT_EQ(line.find("\x1b[36m") != std::string::npos,
                colour && line.find("━") != std::string::npos);
    }
  }
}

TEST_F(ProgressTest, MessagesScrollAboveTheBar) {
  Progress p(options(true, 10));
  p.message("before the bar");
  EXPECT_EQ(written(), "before the bar\n");
  p.update(5);
  const std::string bar = written();
  p.message("val loss 1.5");
  EXPECT_EQ(written(), "\r\x1b[Kval loss 1.5\n" + bar);
  p.update(10);
  p.finish();
  const std::string last = written();
  EXPECT_NE(last.find("100%"), std::string::npos);
  EXPECT_EQ(last.back(), '\n');
  p.message("done");
  EXPECT_EQ(written(), "done\n");
}

TEST_F(ProgressTest, ADestroyedBarEndsItsLine) {
  {
    Progress p(options(true, 10));
    p.update(5);
    written();
  }
  EXPECT_EQ(written(), "\n");
}

TEST_F(ProgressTest, AResumedRunEstimatesFromItsOwnSpeed) {
  ProgressOptions o = options(false, 2000);
  o.start = 1000;
  Progress p(o);
  time_ += 1;
  p.update(1001);
  time_ += 10;
  p.log(1101);
  EXPECT_EQ(written(), "step 1101/2000 | eta 1:30\n");
}

TEST_F(ProgressTest, ReadsTheEnvironment) {
  ProgressOptions o = options(true, 100);
  o.width.reset();
  o.colour.reset();
  ::setenv("COLUMNS", "30", 1);
  ::setenv("NO_COLOR", "1", 1);
  Progress p(o);
  p.update(50, kFigures);
  const std::string line = written();
  EXPECT_LT(columns_of(line), 30);
  EXPECT_EQ(line.find("\x1b[36m"), std::string::npos);
  ::unsetenv("COLUMNS");
  ::unsetenv("NO_COLOR");
  o.is_terminal.reset();
  EXPECT_FALSE(Progress(o).is_terminal());  // a stream in memory is none
}

TEST(Human, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(-999), "-999");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(123456), "123,456");
  EXPECT_EQ(with_commas(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_duration(0.4), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(2 * 86400 + 3 * 3600 + 4 * 60 + 5), "2d 03:04:05");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  for (const auto& [seconds, text] : {std::pair{0.0, "0.00 us"},
                                      {3.2e-6, "3.20 us"},
                                      {9.996e-4, "1.00 ms"},
                                      {0.0123, "12.3 ms"},
                                      {0.85, "850 ms"},
                                      {0.99951, "1.00 s"},
                                      {12.029, "12.0 s"},
                                      {59.94, "59.9 s"},
                                      {59.96, "1 min 0 s"},
                                      {125.4, "2 min 5 s"},
                                      {3599.6, "1 h 0 min"},
                                      {1e7, "2,777 h 46 min"}})
    EXPECT_EQ(duration_text(seconds), text) << seconds;
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(duration_text(-1), "?");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(999.6), "1.00 kB");
  EXPECT_EQ(format_bytes(12'345'678), "12.3 MB");
  EXPECT_EQ(format_bytes(999'999), "1.00 MB");
  EXPECT_EQ(format_bytes(123.4e9), "123 GB");
}

}  // namespace
}  // namespace brrr
