#include "cli/token_lines.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/threads/parallel.h"
#include "formats/json_file.h"

namespace brrr::cli {
namespace {

constexpr size_t kBatchBytes = size_t{4} << 20;
constexpr size_t kChunkBytes = size_t{64} << 10;

/// Whole lines of about kBatchBytes; the last may lack its newline.
class LineBatches {
 public:
  explicit LineBatches(std::FILE* in) : in_(in) {}
  bool next(std::string& batch) {
    batch.swap(rest_);
    rest_.clear();
    size_t searched = 0;
    for (;;) {
      if (batch.size() >= kBatchBytes || ended_) {
        const size_t newline = batch.rfind('\n');
        if (ended_) return !batch.empty();
        if (newline != std::string::npos && newline >= searched) {
          rest_.assign(batch, newline + 1);
          batch.resize(newline + 1);
          return true;
        }
        searched = batch.size();
      }
      const size_t old = batch.size();
      batch.resize(old + (1 << 16));
      errno = 0;
      const size_t n = std::fread(batch.data() + old, 1, 1 << 16, in_);
      batch.resize(old + n);
      if (n == 0) {
        if (std::ferror(in_) != 0)
          user_error("cannot read standard input: {}", std::strerror(errno));
        ended_ = true;
      }
    }
  }

 private:
  std::FILE* in_;
  std::string rest_;
  bool ended_ = false;
};

struct Chunk {
  std::string_view input;
  int64_t first_line = 0, lines = 0;
  std::string output;
  int64_t tokens = 0;
  std::exception_ptr error;
};

/// Cuts a batch into runs of whole lines.
std::vector<Chunk> cut(std::string_view batch, int64_t& line) {
  std::vector<Chunk> chunks;
  while (!batch.empty()) {
    size_t end =
        batch.size() <= kChunkBytes ? std::string_view::npos : batch.find('\n', kChunkBytes);
    end = end == std::string_view::npos ? batch.size() : end + 1;
    Chunk chunk;
    chunk.input = batch.substr(0, end);
    chunk.first_line = line;
    for (const char c : chunk.input) chunk.lines += c == '\n';
    chunk.lines += chunk.input.back() != '\n';
    line += chunk.lines;
    chunks.push_back(std::move(chunk));
    batch.remove_prefix(end);
  }
  return chunks;
}

/// on_line(line with its newline, chunk) for every line, chunks in parallel, output in order.
template <typename OnLine>
CodeCounts each_line(std::FILE* in, const Output& write, OnLine&& on_line) {
  CodeCounts counts;
  LineBatches batches(in);
  std::string batch;
  int64_t line = 1;
  while (batches.next(batch)) {
    std::vector<Chunk> chunks = cut(batch, line);
    parallel_chunks(static_cast<int64_t>(chunks.size()), [&](int64_t i) {
      Chunk& chunk = chunks[static_cast<size_t>(i)];
      int64_t number = chunk.first_line;
      try {
        for (std::string_view rest = chunk.input; !rest.empty(); ++number) {
          const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
          on_line(rest.substr(0, end), chunk);
          rest.remove_prefix(end);
        }
      } catch (const UserError& e) {
        chunk.error = std::make_exception_ptr(
            UserError(fmt::format("standard input, line {}: {}", number, e.what()), e.code()));
      } catch (...) {
        chunk.error = std::current_exception();
      }
    });
    for (const Chunk& chunk : chunks) {
      write(chunk.output);  // what came before the faulty line is right
      if (chunk.error) std::rethrow_exception(chunk.error);
      counts.lines += chunk.lines;
      counts.tokens += chunk.tokens;
      counts.bytes += static_cast<int64_t>(chunk.input.size());
    }
  }
  return counts;
}

}  // namespace

CodeCounts encode_lines(const io::Tokenizer& tokenizer, const io::EncodeOptions& options,
                        std::FILE* in, const Output& write) {
  return each_line(in, write, [&](std::string_view line, Chunk& chunk) {
    thread_local std::vector<int32_t> ids;
    ids.clear();
    tokenizer.encode(line, options, ids);
    char digits[16];
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) chunk.output += ' ';
      const auto [end, error] = std::to_chars(digits, digits + sizeof digits, ids[i]);
      (void)error;  // 16 characters hold any int32
      chunk.output.append(digits, end);
    }
    chunk.output += '\n';
    chunk.tokens += static_cast<int64_t>(ids.size());
  });
}

CodeCounts decode_lines(const io::Tokenizer& tokenizer, bool skip_special_tokens, std::FILE* in,
                        const Output& write) {
  int64_t text_bytes = 0;
  const Output counted = [&](std::string_view out) {
    text_bytes += static_cast<int64_t>(out.size());
    write(out);
  };
  CodeCounts counts = each_line(in, counted, [&](std::string_view line, Chunk& chunk) {
    thread_local std::vector<int32_t> ids;
    ids.clear();
    const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
    for (size_t at = 0;;) {
      while (at < line.size() && is_space(line[at])) ++at;
      if (at == line.size()) break;
      size_t end = at;
      while (end < line.size() && !is_space(line[end])) ++end;
      int32_t id = 0;
      const auto [stop, error] = std::from_chars(line.data() + at, line.data() + end, id);
      if (error != std::errc{} || stop != line.data() + end)
        user_error("expected token ids separated by spaces; got {}",
                   io::in_quotes(line.substr(at, end - at)));
      ids.push_back(id);
      at = end;
    }
    io::DecodeState state{.skip_special_tokens = skip_special_tokens};
    tokenizer.decode(ids, state, chunk.output);
    tokenizer.finish(state, chunk.output);
    chunk.tokens += static_cast<int64_t>(ids.size());
  });
  counts.bytes = text_bytes;
  return counts;
}

}  // namespace brrr::cli
