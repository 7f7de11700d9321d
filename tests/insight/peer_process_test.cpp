// A child process that answers questions, and every way in which it may fail to.
#include "insight/bench/peer_process.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace brrr::insight {
namespace {

class PeerProcesses : public ::testing::Test {
 protected:
  PeerOptions shell(const std::string& script, double timeout_seconds = 30) const {
    return {.arguments = {"/bin/sh", "-c", script},
            .environment = {"PEER_NAME=tester"},
            .messages = folder_ / "messages",
            .timeout_seconds = timeout_seconds};
  }
  /// The error of one question.
  std::string error_of(const std::string& script, double timeout_seconds = 30) const {
    PeerProcess peer(shell(script, timeout_seconds));
    try {
      const nlohmann::json answer = peer.ask({{"do", "work"}});
      ADD_FAILURE() << "an answer: " << answer;
    } catch (const PeerError& e) {
      return e.what();
    }
    return "";
  }

  test::TempFolder folder_;
};

TEST_F(PeerProcesses, AnswerLineByLine) {
  PeerProcess peer(shell(
      R"(while read -r line; do echo "{\"name\": \"$PEER_NAME\", \"question\": $line}"; done)"));
  for (int i = 0; i < 3; ++i) {
    const nlohmann::json answer = peer.ask({{"number", i}});
    EXPECT_EQ(answer["name"], "tester");
    EXPECT_EQ(answer["question"]["number"], i);
    peer.pause();  // the next question wakes it
  }
  // More than a socket holds at once.
  const std::string large(size_t{1} << 20, 'x');
  EXPECT_EQ(peer.ask({{"text", large}})["question"]["text"], large);
}

TEST_F(PeerProcesses, TheEndOfAProcessIsToldWithItsLastWords) {
  EXPECT_EQ(error_of("read x; echo first >&2; echo 'no memory left' >&2; exit 7"),
            "it ended with exit status 7: no memory left");
  EXPECT_EQ(error_of("exit 0"), "it ended with exit status 0");
  EXPECT_EQ(error_of("read x; kill -9 $$"), "it was killed by signal 9");
  EXPECT_EQ(error_of("exec 0<&- 1>&- 2>&-; sleep 30"), "it closed its standard output");
}

TEST_F(PeerProcesses, GarbageIsShown) {
  EXPECT_EQ(error_of("read x; echo hello"), "expected a JSON object on one line; got 'hello'");
  EXPECT_EQ(error_of("read x; echo '[1]'"), "expected a JSON object on one line; got '[1]'");
  EXPECT_EQ(error_of("read x; echo"), "expected a JSON object on one line; got ''");
}

TEST_F(PeerProcesses, AnErrorIsPassedOn) {
  EXPECT_EQ(error_of(R"(read x; echo '{"error": "ImportError: no torch"}')"),
            "ImportError: no torch");
}

TEST_F(PeerProcesses, NoAnswerIsATimeout) {
  EXPECT_NE(error_of("read x; sleep 30", 0.2).find("no answer within"), std::string::npos);
  EXPECT_NE(error_of("sleep 30", 0.2).find("no answer within"), std::string::npos);
}

TEST_F(PeerProcesses, WaitingCanBeStopped) {
  PeerOptions options = shell("sleep 30");
  int asked = 0;
  options.stop = [&] { return ++asked > 1; };
  PeerProcess peer(std::move(options));
  EXPECT_THROW(peer.ask({{"do", "work"}}), PeerStopped);
}

TEST_F(PeerProcesses, AMissingProgramIsNamed) {
  PeerOptions options = shell("");
  options.arguments = {"/no/such/program"};
  try {
    PeerProcess peer(std::move(options));
    ADD_FAILURE() << "it was started";
  } catch (const PeerError& e) {
    EXPECT_STREQ(e.what(), "/no/such/program cannot be started: No such file or directory");
  }
}

}  // namespace
}  // namespace brrr::insight
