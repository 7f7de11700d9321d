// Training on conversations (--task chat): which tokens are learnt, how long conversations are
// divided, and what is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "base/env.h"
#include "data/document_batches.h"
#include "support/golden_tokenizer.h"
#include "support/temp_folder.h"
#include "train/chat/encode_conversation.h"

namespace brrr::train {
namespace {

constexpr const char* kMarked =
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '.' }}{% endgeneration %}{% else %}{{ m.content + '.' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kPlain =
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '.' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class ChatData : public testing::Test {
 protected:
  io::ChatTemplate chat(const std::string& text) { return {text, "the template", folder_.path()}; }
  RowFile<Conversation> read(const std::string& lines) {
    write_file_atomically(folder_ / "c.jsonl", lines);
    return read_conversations(folder_ / "c.jsonl");
  }
  Conversation one(const std::string& line) { return read(line + "\n").rows.at(0); }
  /// The texts that are learnt, with byte tokens.
  std::string learnt_of(const EncodedConversation& e) {
    std::string text;
    for (size_t i = 0; i < e.ids.size(); ++i)
      if (e.learnt[i] != 0) text += static_cast<char>(e.ids[i]);
    return text;
  }
  std::string text_of(const EncodedConversation& e) {
    return std::string(e.ids.begin(), e.ids.end());
  }
  /// A tokenizer with more tokens behind its vocabulary, as the script of the goldens makes it.
  std::unique_ptr<io::Tokenizer> with_added_tokens(const fs::path& file, const io::Json& added) {
    io::Json json = io::Json::parse(read_file(file));
    const size_t first = json["model"]["vocab"].size();
    for (size_t i = 0; i < added.size(); ++i) {
      io::Json token = added[i];
      token.update({{"id", first + i},
                    {"single_word", false},
                    {"lstrip", false},
                    {"normalized", false},
                    {"special", true}});
      json["added_tokens"].push_back(token);
    }
    const fs::path own = folder_ / "tokenizer";
    fs::create_directories(own);
    write_file_atomically(own / "tokenizer.json", json.dump());
    return io::load_tokenizer(own);
  }
  test::TempFolder folder_;
  std::unique_ptr<io::Tokenizer> bytes_ = io::make_byte_tokenizer();
};

const char* const kTwoTurns =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},)"
    R"( {"role": "assistant", "content": "bc"}, {"role": "user", "content": "d"},)"
    R"( {"role": "assistant", "content": "ef"}]})";

TEST_F(ChatData, LearntTokensAreThoseOfTransformers) {
  const auto data = env::get("BRRR_DATA");
  if (!data) GTEST_SKIP() << "BRRR_DATA is not set; tokenizers are read from it";
  const io::Json golden = test::read_golden("chat_data.json");
  int64_t cases = 0;
  std::map<std::string, std::unique_ptr<io::Tokenizer>> tokenizers;  // loading one takes long
  for (const io::Json& c : golden["cases"]) {
    const std::string name = c["tokenizer"];
    const fs::path folder = fs::path(*data) / name;
    if (!fs::exists(folder)) continue;
    std::unique_ptr<io::Tokenizer>& tokenizer = tokenizers[name];
    if (!tokenizer)
      tokenizer = name == "stories260K"
                      ? with_added_tokens(folder / "tokenizer.json", golden["added"])
                      : io::load_tokenizer(folder);
    const io::ChatTemplate marked = chat(c["template"].get<std::string>());
    Conversation conversation;
    conversation.messages = io::messages_of(nlohmann::ordered_json(c["messages"]), "the golden");
    const auto parts = ConversationEncoder(marked, *tokenizer, 1000).encode(conversation);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(parts[0].ids, c["ids"].get<std::vector<int32_t>>()) << c.dump();
    EXPECT_EQ(parts[0].learnt, c["learnt"].get<std::vector<uint8_t>>()) << c.dump();
    ++cases;
  }
  if (cases == 0) GTEST_SKIP() << "BRRR_DATA has no tokenizers";
}

// Without marks, an answer is what the template adds to the text that asks for it. In Llama 2's
// form the space before the answer belongs to that, because a prompt ends before it.
TEST_F(ChatData, TheSpaceBeforeAnAnswerIsLearntWhereAPromptEndsBeforeIt) {
  const auto data = env::get("BRRR_DATA");
  if (!data || !fs::exists(fs::path(*data) / "stories260K")) GTEST_SKIP() << "no tokenizer";
  const auto tokenizer = io::load_tokenizer(fs::path(*data) / "stories260K");
  const std::string head = "{% for m in messages %}{% if m.role == 'assistant' %} ",
                    tail = "</s>{% else %}<s>[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}";
  const io::ChatTemplate plain = chat(head + "{{ m.content }} " + tail),
                         marked = chat(
                             head + "{% generation %}{{ m.content }} {% endgeneration %}" + tail);
  const auto learnt = [&](const io::ChatTemplate& chat, const std::string& answer) {
    const Conversation c = one(R"({"prompt": "a", "completion": ")" + answer + "\"}");
    const EncodedConversation e = ConversationEncoder(chat, *tokenizer, 1000).encode(c).at(0);
    std::vector<int32_t> ids;
    for (size_t i = 0; i < e.ids.size(); ++i)
      if (e.learnt[i] != 0) ids.push_back(e.ids[i]);
    return ids;
  };
  const int32_t end = *tokenizer->token_id("</s>"), space = *tokenizer->token_id("\u2581");
  // One token holds the space and the first letter.
  std::vector<int32_t> word = learnt(marked, "once");
  word.push_back(end);
  EXPECT_EQ(learnt(plain, "once"), word);
  // A digit is a token of its own, behind that of the space.
  std::vector<int32_t> number = learnt(marked, "12");
  number.insert(number.begin(), space);
  number.push_back(end);
  EXPECT_EQ(learnt(plain, "12"), number);
}

TEST_F(ChatData, TurnsOfTheAssistantAreLearnt) {
  const Conversation c = one(kTwoTurns);
  for (const char* text : {kMarked, kPlain}) {
    const io::ChatTemplate t = chat(text);
    const auto parts = ConversationEncoder(t, *bytes_, 100).encode(c);
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(text_of(parts[0]), "<system>S.<user>a.<assistant>bc.<user>d.<assistant>ef.");
    EXPECT_EQ(learnt_of(parts[0]), "bc.ef.");
  }
}

TEST_F(ChatData, OfAPromptWithACompletionTheCompletionIsLearnt) {
  const std::string turns =
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},)"
      R"( {"role": "user", "content": "d"}], "completion": [{"role": "assistant", "content": "e"}]})";
  for (const char* text : {kMarked, kPlain}) {
    const io::ChatTemplate t = chat(text);
    const ConversationEncoder encoder(t, *bytes_, 100);
    EXPECT_EQ(learnt_of(encoder.encode(one(R"({"prompt": "a", "completion": "bc"})")).at(0)),
              "bc.");
    EXPECT_EQ(learnt_of(encoder.encode(one(turns)).at(0)), "e.");
  }
}

// OpenAI's fine-tuning format marks messages by "weight", axolotl's by "train".
TEST_F(ChatData, AnswersThatAreMarkedSoAreNotLearnt) {
  const auto turns = [](const std::string& first, const std::string& second) {
    return fmt::format(
        R"({{"messages": [{{"role": "user", "content": "a", "weight": 0}},)"
        R"( {{"role": "assistant", "content": "bc"{}}}, {{"role": "user", "content": "d"}},)"
        R"( {{"role": "assistant", "content": "ef"{}}}]}})",
        first, second);
  };
  for (const char* text : {kMarked, kPlain}) {
    const io::ChatTemplate t = chat(text);
    const ConversationEncoder encoder(t, *bytes_, 100);
    const auto learnt = [&](const std::string& first, const std::string& second) {
      return learnt_of(encoder.encode(one(turns(first, second))).at(0));
    };
    EXPECT_EQ(learnt(R"(, "weight": 0)", ""), "ef.");
    EXPECT_EQ(learnt(R"(, "weight": 1)", R"(, "weight": 0)"), "bc.");
    EXPECT_EQ(learnt(R"(, "weight": 0.0)", R"(, "weight": 1.0)"), "ef.");
    EXPECT_EQ(learnt(R"(, "train": false)", R"(, "train": true)"), "ef.");
    EXPECT_EQ(learnt("", R"(, "train": false, "weight": 0)"), "bc.");
    EXPECT_EQ(learnt(R"(, "train": null)", R"(, "weight": null)"), "bc.ef.");
    // The parts of a conversation that is divided keep their marks; one that teaches nothing is
    // left out.
    const auto parts =
        ConversationEncoder(t, *bytes_, 30).encode(one(turns(R"(, "weight": 0)", "")));
    ASSERT_EQ(parts.size(), 1u);
    EXPECT_EQ(text_of(parts[0]), "<user>d.<assistant>ef.");
    EXPECT_EQ(learnt_of(parts[0]), "ef.");
    // An answer that is asked by a prompt.
    EXPECT_EQ(learnt_of(encoder
                            .encode(one(R"({"prompt": "a", "completion": [)"
                                        R"({"role": "assistant", "content": "bc", "weight": 0},)"
                                        R"( {"role": "user", "content": "d"},)"
                                        R"( {"role": "assistant", "content": "e"}]})"))
                            .at(0)),
              "e.");
  }
}

TEST_F(ChatData, LongConversationsAreDividedBetweenExchanges) {
  const Conversation c = one(kTwoTurns);
  for (const char* text : {kMarked, kPlain}) {
    const io::ChatTemplate t = chat(text);
    const auto parts = ConversationEncoder(t, *bytes_, 40).encode(c);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(text_of(parts[0]), "<system>S.<user>a.<assistant>bc.");
    EXPECT_EQ(text_of(parts[1]), "<system>S.<user>d.<assistant>ef.");
    EXPECT_EQ(learnt_of(parts[0]), "bc.");
    EXPECT_EQ(learnt_of(parts[1]), "ef.");
    EXPECT_TRUE(ConversationEncoder(t, *bytes_, 20).encode(c).empty());
  }
}

TEST_F(ChatData, TemplatesThatTellNoAnswersApartAreRefused) {
  const Conversation c = one(kTwoTurns);
  const auto refused = [&](const std::string& text, const char* why) {
    const io::ChatTemplate t = chat(text);
    EXPECT_USER_ERROR(ConversationEncoder(t, *bytes_, 100).encode(c), why);
  };
  refused("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
          "the text that asks for message 3 is not how the text with it begins");
  // Earlier answers are written in short once others follow.
  refused(
      "{% for m in messages %}{{ m.content if loop.last or m.role == 'user' else '-' }}"
      "{% endfor %}",
      "writes the first 3 messages in another way when others follow");
  refused("{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}",
          "marks no token of the assistant");
}

TEST_F(ChatData, LinesThatTeachNothingAreRefused) {
  const auto messages = [](const std::string& list) { return "{\"messages\": [" + list + "]}"; };
  const std::string user = R"({"role": "user", "content": "a"})",
                    answer = R"({"role": "assistant", "content": "b"})";
  const std::string good = messages(user + "," + answer) + "\n";
  for (const auto& bad : std::vector<std::pair<std::string, const char*>>{
           {"[1]", "expected an object such as {\"messages\": [...]} in each line; found an array"},
           {"{\"text\": \"a\"}", "expected \"messages\", or \"prompt\" and \"completion\""},
           {"{\"prompt\": \"a\"}", "found 'prompt'"},
           {messages(""), "it has no message"},
           {messages("5"), "entry 1 is the number 5"},
           {messages(R"({"content": "a"})"), "message 1 has no \"role\""},
           {messages(R"({"role": "asistant", "content": "a"})"),
            "message 1 has the role 'asistant'; expected one of system, developer, user, "
            "assistant, tool, function, ipython; did you mean assistant?"},
           {messages(user + R"(,{"role": "assistant", "content": " "})"),
            "message 2 (assistant) is empty"},
           {messages(R"({"role": "system", "content": "a"})"), "no message of the assistant"},
           {messages(user), "no message of the assistant"},
           {R"({"prompt": "a", "completion": ""})", "message 2 (assistant) is empty"},
           {R"({"prompt": "a", "completion": "b", "tools": 5})", "expected a list of tools"},
           {messages(user + R"(,{"role": "assistant", "content": "b", "weight": 2})"),
            "message 2 (assistant) has \"weight\" 2; expected 0 (not learnt) or 1"},
           {messages(user + R"(,{"role": "assistant", "content": "b", "weight": 0.5})"),
            "has \"weight\" 0.5; expected 0"},
           {messages(user + R"(,{"role": "assistant", "content": "b", "weight": true})"),
            "has \"weight\" True; expected 0"},
           {messages(user + R"(,{"role": "assistant", "content": "b", "train": "no"})"),
            "message 2 (assistant) has \"train\" 'no'; expected true or false (not learnt)"},
           {messages(user +
                     R"(,{"role": "assistant", "content": "b", "train": true, "weight": 0})"),
            "contradict each other"},
           {messages(R"({"role": "user", "content": "a", "train": true},)" + answer),
            "message 1 (user) has \"train\" True, but only messages of the assistant are learnt"},
           {messages(R"({"role": "user", "content": "a", "weight": 1},)" + answer),
            "message 1 (user) has \"weight\" 1, but only"},
           {messages(user + R"(,{"role": "assistant", "content": "b", "weight": 0})"),
            "every message of the assistant has \"weight\": 0 or \"train\": false"},
           {"{", "not valid JSON"}}) {
    EXPECT_USER_ERROR(read(good + bad.first + "\n"), bad.second);
    EXPECT_USER_ERROR(read(good + bad.first + "\n"), "c.jsonl: line 2");
  }
  EXPECT_USER_ERROR(read("\n \n"), "it has no conversation");
  // A call of a tool says something without text.
  const Conversation called =
      one(messages(user + R"(,{"role": "assistant", "content": null, "tool_calls": [{"id": 7}]})"));
  EXPECT_EQ(called.messages.size(), 2u);
}

TEST_F(ChatData, BatchesScoreWhatIsLearnt) {
  const io::TokenSource source = io::TokenSource::from_ids({1, 2, 3, 4, 5, 6, 7, 8}, "ids");
  const std::vector<io::Document> documents{{0, 5}, {5, 8}};
  const std::vector<uint8_t> learnt{1, 0, 1, 1, 0, 1, 0, 1};
  io::BatchOptions options{.mode = io::Sampling::kSequential, .batch = 1, .context = 8, .vocab = 9};
  for (const bool flat : {false, true}) {
    options.flat = flat;
    options.sequences_per_row = flat ? 2 : 1;
    const io::DocumentBatches batches(source, documents, options, learnt);
    std::vector<int32_t> scored;
    int64_t count = 0;
    for (int64_t i = 0; i < batches.batches_per_pass(); ++i) {
      io::Batch batch;
      batches.fill(i, batch);
      count += batch.count;
      for (const int32_t target : batch.ids("targets"))
        if (target != io::kIgnoreId && target != 0) scored.push_back(target);
    }
    std::ranges::sort(scored);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(scored, (std::vector<int32_t>{3, 4, 8}));
    EXPECT_NE(batches.fingerprint(), io::DocumentBatches(source, documents, options).fingerprint());
  }
}

}  // namespace
}  // namespace brrr::train
