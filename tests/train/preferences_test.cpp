// Preference data (--task dpo): what is read from a line, which tokens are compared, and what is
// refused; the file of the reference's log probabilities.

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "support/temp_folder.h"
#include "train/preferences/preference_data.h"
#include "train/preferences/preference_file.h"

namespace brrr::train {
namespace {

constexpr const char* kPairTemplate =
    "{% for m in messages %}{{ '<' + m.role[0] + '>' + m.content + '.' }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";

class PreferenceFiles : public testing::Test {
 protected:
  void SetUp() override {
    io::make_byte_tokenizer()->save(folder_.path());
    write_file_atomically(folder_ / "chat.jinja", kPairTemplate);
    options_.task = TrainTask::dpo;
    options_.data = {(folder_ / "pairs.jsonl").string()};
    options_.chat_template = (folder_ / "chat.jinja").string();
    options_.context = 64;
    options_.val_fraction = 0.5;
  }
  void write(const std::string& lines) { write_file_atomically(folder_ / "pairs.jsonl", lines); }
  RowFile<Preference> read(const std::string& lines) {
    write(lines);
    return read_preferences(folder_ / "pairs.jsonl");
  }
  Dataset data(const std::string& lines) {
    write(lines);
    return preference_dataset(options_, folder_.path().string());
  }
  /// The text of a document; with `scored` that of its targets alone.
  static std::string text_of(const Dataset& d, const io::Document& document, bool scored = false) {
    const PreferencePart& part = d.preferences->train;
    std::vector<int32_t> ids(static_cast<size_t>(document.end - document.begin));
    part.tokens.read(document.begin, ids);
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i)
      if (!scored || part.learnt[static_cast<size_t>(document.begin) + i] != 0)
        text += static_cast<char>(ids[i]);
    return text;
  }
  test::TempFolder folder_;
  TrainOptions options_;
};

const char* const kTextPair = R"({"prompt": "a", "chosen": "bc", "rejected": "d"})";
const char* const kMessagePair = R"({"prompt": [{"role": "user", "content": "a"}],)"
                                 R"( "chosen": [{"role": "assistant", "content": "bc"}],)"
                                 R"( "rejected": [{"role": "assistant", "content": "d"}]})";
const char* const kImplicitPair =
    R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}],)"
    R"( "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "d"}]})";

TEST_F(PreferenceFiles, AllFormsSayTheSame) {
  for (const char* line : {kTextPair, kMessagePair, kImplicitPair}) {
    const Dataset d = data(std::string(line) + "\n");
    ASSERT_EQ(d.preferences->train.pairs.size(), 1u);
    EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen), "<u>a.<a>bc.");
    EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen, true), "bc.");
    EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].rejected), "<u>a.<a>d.");
    EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].rejected, true), "d.");
    EXPECT_FALSE(d.has_val);
    EXPECT_EQ(d.sample_prompt, "<u>a.<a>");
  }
}

TEST_F(PreferenceFiles, OfLongPromptsTheLastAnswerIsCompared) {
  const Dataset d =
      data(R"({"chosen": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},)"
           R"( {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},)"
           R"( {"role": "assistant", "content": "d"}],)"
           R"( "rejected": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},)"
           R"( {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},)"
           R"( {"role": "assistant", "content": "ef"}]})");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen), "<s>S.<u>a.<a>b.<u>c.<a>d.");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen, true), "d.");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].rejected, true), "ef.");
}

TEST_F(PreferenceFiles, AnswersThatAreMarkedSoAreNotCompared) {
  const Dataset d =
      data(R"({"prompt": "a", "chosen": [{"role": "assistant", "content": "b", "weight": 0},)"
           R"( {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],)"
           R"( "rejected": "e"})");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen), "<u>a.<a>b.<u>c.<a>d.");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen, true), "d.");
  EXPECT_USER_ERROR(data(R"({"prompt": "a", "rejected": "b",)"
                         R"( "chosen": [{"role": "assistant", "content": "b", "train": false}]})"),
                    "line 1, chosen: every message of the assistant");
}

TEST_F(PreferenceFiles, EverySecondPairValidates) {
  const Dataset d = data(fmt::format("{0}\n{0}\n\n{0}\n", kTextPair));
  EXPECT_EQ(d.preferences->train.pairs.size(), 2u);
  EXPECT_EQ(d.preferences->validation.pairs.size(), 1u);
  EXPECT_TRUE(d.has_val);
  EXPECT_NE(d.description.find("2 pairs for training and 1 for validation"), std::string::npos)
      << d.description;
}

TEST_F(PreferenceFiles, LongSequencesLoseTheirEnd) {
  options_.context = 9;  // ten ids with the last target
  Dataset d = data(R"({"prompt": "a", "chosen": "bcdefgh", "rejected": "d"})");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].chosen), "<u>a.<a>bc");
  EXPECT_EQ(text_of(d, d.preferences->train.pairs[0].rejected), "<u>a.<a>d.");
  ASSERT_FALSE(d.notes.empty());
  EXPECT_NE(d.notes[0].find("1 pair longer than the context of 9 tokens lost the end"),
            std::string::npos)
      << d.notes[0];
  // Within the context the answers are equal, or nothing is left of them.
  const std::string equal = R"({"prompt": "a", "chosen": "bcdefgh", "rejected": "bcdeeee"})",
                    prompt = R"({"prompt": "aaaaaaaaa", "chosen": "b", "rejected": "c"})";
  d = data(fmt::format("{}\n{}\n{}\n{}\n{}\n", kTextPair, kTextPair, equal, kTextPair, prompt));
  EXPECT_EQ(d.preferences->train.pairs.size(), 1u);
  EXPECT_NE(d.notes.at(1).find("2 pairs left out: within the context of 9 tokens"),
            std::string::npos)
      << d.notes.at(1);
  EXPECT_USER_ERROR(data(equal + "\n"), "no pair has answers that differ within the context of 9");
  options_.truncate = false;
  EXPECT_USER_ERROR(data(equal + "\n"),
                    "pairs.jsonl: line 1: the chosen answer and its prompt have 16 tokens, more "
                    "than the context of 9");
}

TEST_F(PreferenceFiles, ContextIsAsShortAsTheLongestSequence) {
  const Dataset d = data(std::string(kTextPair) + "\n");  // 11 ids: 10 inputs
  shorten_context(options_, d);
  EXPECT_EQ(options_.context, 16);
  options_.context = 12;
  shorten_context(options_, d);
  EXPECT_EQ(options_.context, 12);
  options_.given = {"context"};
  options_.context = 64;
  shorten_context(options_, d);
  EXPECT_EQ(options_.context, 64);
}

TEST_F(PreferenceFiles, LinesThatCompareNothingAreRefused) {
  const std::string user = R"({"role": "user", "content": "a"})",
                    answer = R"({"role": "assistant", "content": "b"})",
                    other = R"({"role": "assistant", "content": "c"})";
  const auto both = [](const std::string& chosen, const std::string& rejected) {
    return fmt::format(R"({{"chosen": [{}], "rejected": [{}]}})", chosen, rejected);
  };
  for (const auto& bad : std::vector<std::pair<std::string, const char*>>{
           {"[1]",
            "expected an object such as {\"prompt\": ..., \"chosen\": ..., \"rejected\": ...} in "
            "each line; found an array"},
           {R"({"prompt": "a", "completion": "b"})",
            "expected \"prompt\", \"chosen\" and \"rejected\"; found 'prompt', 'completion'"},
           {R"({"prompt": "a", "chosen": "b"})", "found 'prompt', 'chosen'"},
           {R"({"prompt": "a", "chosen": "b", "rejected": "b"})",
            "\"chosen\" and \"rejected\" are equal"},
           {both(user + "," + answer, user + "," + answer),
            "\"chosen\" and \"rejected\" are equal"},
           {R"({"chosen": "a b", "rejected": "a c"})",
            "expected \"prompt\" beside \"chosen\" and \"rejected\", or lists of messages that "
            "begin with the prompt; \"chosen\" is the string 'a b'"},
           {both(answer, other), "begin with different messages, so they have no common prompt"},
           {both(user, user + "," + answer),
            "\"chosen\" is how \"rejected\" begins, and has no answer of its own"},
           {both(user + "," + answer, user),
            "\"rejected\" is how \"chosen\" begins, and has no answer of its own"},
           {both(user + "," + answer, user + R"(, {"role": "asistant", "content": "c"})"),
            "rejected: message 2 has the role 'asistant'"},
           {both(user + "," + answer, user + R"(, {"role": "user", "content": "c"})"),
            "rejected: no message of the assistant"},
           {R"({"prompt": "a", "chosen": "", "rejected": "b"})",
            "chosen: message 2 (assistant) is empty"},
           {R"({"prompt": " ", "chosen": "c", "rejected": "b"})",
            "chosen: message 1 (user) is empty"},
           {R"({"prompt": 5, "chosen": "c", "rejected": "b"})", "prompt"},
           {R"({"prompt": "a", "chosen": "c", "rejected": "b", "tools": 5})",
            "expected a list of tools"},
           {"{", "not valid JSON"}}) {
    EXPECT_USER_ERROR(read(fmt::format("{}\n{}\n", kTextPair, bad.first)), bad.second);
    EXPECT_USER_ERROR(read(fmt::format("{}\n{}\n", kTextPair, bad.first)), "pairs.jsonl: line 2");
  }
  EXPECT_USER_ERROR(read("\n"), "it has no pair of answers; expected one in each line");
  // The template may write different texts alike.
  write_file_atomically(folder_ / "chat.jinja",
                        "{% for m in messages %}{{ m.role[0] + (m.content | trim) }}{% endfor %}"
                        "{% if add_generation_prompt %}a{% endif %}");
  EXPECT_USER_ERROR(data(R"({"prompt": "a", "chosen": "b", "rejected": "b "})"),
                    "pairs.jsonl: line 1: \"chosen\" and \"rejected\" are the same tokens");
}

TEST_F(PreferenceFiles, ReferencesAreThoseOfTheirPairs) {
  Dataset d = data(fmt::format("{0}\n{0}\n{0}\n", kTextPair));
  PreferenceSet& set = *d.preferences;
  const fs::path file = folder_ / kReferenceFile;
  set.train.reference = {-1.5f, -2.25f, -3, -4};
  set.validation.reference = {-5, -6};
  set.write_reference(file);
  const auto expected = std::pair{set.train.reference, set.validation.reference};
  set.train.reference.clear();
  set.validation.reference.clear();
  set.read_reference(file);
  EXPECT_EQ((std::pair{set.train.reference, set.validation.reference}), expected);
  // The scores belong to these pairs alone.
  Dataset other = data(fmt::format("{0}\n{0}\n{1}\n", kTextPair,
                                   R"({"prompt": "a", "chosen": "bc", "rejected": "e"})"));
  EXPECT_USER_ERROR(other.preferences->read_reference(file),
                    "log probabilities of other train pairs than those it is given now");
  other = data(fmt::format("{0}\n{1}\n{0}\n", kTextPair,
                           R"({"prompt": "a", "chosen": "bc", "rejected": "e"})"));
  EXPECT_USER_ERROR(other.preferences->read_reference(file), "other validation pairs");
  Dataset none = data(std::string(kTextPair) + "\n");
  none.preferences->train.reference = {-1, -2};
  none.preferences->write_reference(file);
  none.preferences->train.reference.clear();
  none.preferences->read_reference(file);
  EXPECT_EQ(none.preferences->train.reference, (std::vector<float>{-1, -2}));
  write_file_atomically(file, "no tensors");
  EXPECT_USER_ERROR(set.read_reference(file), "reference.safetensors");
}

}  // namespace
}  // namespace brrr::train
