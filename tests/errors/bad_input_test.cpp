// What a user can get wrong: every case ends with the right exit code, leaves standard output
// empty and says one line on standard error that names the thing and what to do.

#include <algorithm>

#include "e2e/run.h"
#include "folders/folder_lock.h"
#include "support/bpe_model.h"

namespace brrr::test {
namespace {

struct Case {
  std::vector<std::string> args;
  int code;
  std::vector<std::string> parts;  // each must be in the line
  std::vector<std::string> environment = {};
};

class Errors : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    if (IsSkipped()) return;
    put("empty.txt", "");
    put("binary.txt", std::string("abc\0def", 7));
    put("latin1.txt", "caf\xe9 au lait, caf\xe9 noir\n");
    put("utf16.txt", std::string("\xff\xfe\x61\0\x62\0", 6));
    fs::create_directory(path("nothing"));
  }
  void put(const std::string& name, const std::string& content) {
    write_file_atomically(path(name), content);
  }
  std::string at(const std::string& name) const { return path(name).string(); }

  void check(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      const std::string command = fmt::format("{}", fmt::join(c.args, " "));
      EXPECT_EQ(run(c.args, c.environment), c.code) << command << "\n" << err_;
      const auto begin = err_.find("brrr: ");
      ASSERT_NE(begin, std::string::npos) << command << "\n" << err_;
      const std::string line = err_.substr(begin);
      EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << command << "\n" << err_;
      EXPECT_EQ(out_, "") << command;
      for (const std::string& part : c.parts)
        EXPECT_NE(line.find(part), std::string::npos)
            << command << "\nexpected '" << part << "', got: " << line;
      EXPECT_EQ(err_.find("bug in Brrr"), std::string::npos) << command;
    }
  }
  /// Shards of the text in the folder `name`, by bytes.
  void prepare(const std::string& name, std::vector<std::string> more = {}) {
    std::vector<std::string> args{"data",        "prepare", "--text",       text_path().string(),
                                  "--tokenizer", "byte",    "--output-dir", at(name)};
    put_options(args, more);
    ASSERT_EQ(run(args), 0) << err_;
  }
  /// A training run on shards, too small to matter.
  std::vector<std::string> train_on(const std::string& data,
                                    std::vector<std::string> more = {}) const {
    std::vector<std::string> args{
        "train", "--data",    data, "--output-dir", at("run"), "--n-layer",   "1", "--n-embd",
        "16",    "--n-head",  "1",  "--context",    "16",      "--max-steps", "2", "--eval-batches",
        "1",     "--samples", "0",  "--threads",    "1"};
    put_options(args, more);
    return args;
  }
};

TEST_F(Errors, Texts) {
  std::vector<Case> cases;
  for (const std::string verb : {"prepare", "train-tokenizer"})
    for (const auto& [file, part] : {std::pair{"absent.txt", "no such text file"},
                                     {"empty.txt", "is empty"},
                                     {"binary.txt", "binary"},
                                     {"latin1.txt", "UTF-8"},
                                     {"utf16.txt", "UTF-16"},
                                     {"nothing", "holds no text files"}})
      cases.push_back(
          {{"data", verb, "--text", at(file), "--output-dir", at("out")}, 1, {at(file), part}});
  // A tokenizer that needs no files: GPT-2's may be absent here.
  for (Case& c : cases)
    if (c.args[1] == "prepare") put_options(c.args, {"--tokenizer", "char"});
  cases.push_back({{"train", "--text", ""}, 2, {"--text", "empty"}});
  cases.push_back({{"train", "--text", at("nothing")}, 1, {at("nothing"), "holds no text files"}});
  check(cases);
  EXPECT_FALSE(fs::exists(path("out") / "prepare.json"));
  // The option is advised only where it exists.
  run({"data", "train-tokenizer", "--text", at("binary.txt"), "--output-dir", at("out")});
  EXPECT_EQ(err_.find("--tokenizer"), std::string::npos) << err_;
}

TEST_F(Errors, ARefusedTextDoesNotBindItsFolder) {
  const auto prepare_from = [&](const std::string& file) -> std::vector<std::string> {
    return {"data",         "prepare", "--text",      at(file),
            "--output-dir", at("out"), "--tokenizer", "char"};
  };
  check({{prepare_from("binary.txt"), 1, {"binary.txt"}},
         {prepare_from("latin1.txt"), 1, {"latin1.txt", "UTF-8"}}});
  ASSERT_EQ(run(prepare_from("text.txt")), 0) << err_;
  put("other.txt", "another text\n");
  check({{prepare_from("other.txt"), 1, {"--overwrite"}}});
  EXPECT_EQ(err_.find("--restart"), std::string::npos) << err_;
}

TEST_F(Errors, Shards) {
  prepare("bytes");
  prepare("shards", {"--val-fraction", "0"});
  const std::string shard = read_file(path("bytes") / "train.bin");
  put("cut.bin", shard.substr(0, shard.size() - 7));
  put("magic.bin", "\x01" + shard.substr(1));
  put("odd.bin", "abc");
  put("empty.bin", "");
  check({{train_on(at("absent")), 1, {at("absent"), "brrr data"}},
         {train_on("nope"), 1, {"nope", "brrr data"}},
         {train_on(at("nothing")), 1, {at("nothing")}},
         {train_on(at("text.txt")), 1, {at("text.txt")}},
         {train_on(at("cut.bin")), 1, {at("cut.bin")}},
         {train_on(at("magic.bin")), 1, {at("magic.bin")}},
         {train_on(at("odd.bin")), 1, {at("odd.bin")}},
         {train_on(at("empty.bin")), 1, {at("empty.bin"), "empty"}},
         {train_on(at("bytes"), {"--context", "100000"}), 1, {"context", "smaller"}},
         {train_on(at("bytes"), {"--tokenizer", at("chars")}), 2, {at("chars")}}});
  std::string flipped = shard;
  flipped[flipped.size() / 2] = static_cast<char>(flipped[flipped.size() / 2] ^ 4);
  write_file_atomically(path("bytes") / "train.bin", flipped);
  check({{train_on(at("bytes")), 1, {(path("bytes") / "train.bin").string(), "checksum"}}});
  EXPECT_FALSE(fs::exists(path("run") / "model.safetensors"));
  // All of a folder may be for training; the run says so and goes on.
  EXPECT_EQ(run(train_on(at("shards"))), 0) << err_;
  EXPECT_NE((out_ + err_).find("no validation"), std::string::npos) << err_;
}

TEST_F(Errors, AShardOfAnotherTokenizer) {
  prepare("bytes");
  ASSERT_EQ(run({"data", "train-tokenizer", "--text", text_path().string(), "--kind", "char",
                 "--output-dir", at("chars")}),
            0)
      << err_;
  check({{train_on(at("bytes"), {"--tokenizer", at("chars")}),
          1,
          {at("chars"), at("bytes"), "char of", "prepared with byte"}}});
  fs::remove(path("bytes") / "tokenizer.json");
  check({{train_on(at("bytes")), 1, {at("bytes"), "--tokenizer"}}});
  EXPECT_EQ(run(train_on(at("bytes"), {"--tokenizer", "byte"})), 0) << err_;
}

TEST_F(Errors, Tokenizers) {
  ASSERT_EQ(run({"data", "train-tokenizer", "--text", text_path().string(), "--vocab-size", "300",
                 "--output-dir", at("bpe")}),
            0)
      << err_;
  const std::string json = read_file(path("bpe") / "tokenizer.json");
  write_file_atomically(path("bpe") / "tokenizer.json", json.substr(0, json.size() / 2));
  check({{{"data", "encode", "--tokenizer", at("bpe")}, 1, {at("bpe"), "tokenizer.json"}}});
  write_file_atomically(path("bpe") / "tokenizer.json", json);
  // The same as GPT-2's two files.
  io::save_bpe(test::bpe_model(*io::load_tokenizer(path("bpe"))), path("bpe"));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::remove(path("bpe") / name);
  const std::string vocab = read_file(path("bpe") / "vocab.json");
  const std::string merges = read_file(path("bpe") / "merges.txt");
  const auto encode = [&](const std::string& name) -> std::vector<std::string> {
    return {"data", "encode", "--tokenizer", name};
  };
  ASSERT_EQ(run(encode(at("bpe"))), 0) << err_;
  const auto damaged = [&](const std::string& v, const std::string& m, const std::string& part) {
    write_file_atomically(path("bpe") / "vocab.json", v);
    write_file_atomically(path("bpe") / "merges.txt", m);
    check({{encode(at("bpe")), 1, {at("bpe"), part}}});
  };
  damaged(vocab.substr(0, vocab.size() / 2), merges, "vocab.json: not valid JSON");
  damaged(vocab, merges + "broken\n", "merges.txt: line");
  damaged(vocab, merges + merges.substr(merges.find('\n') + 1), "already");
  damaged("{}", merges, "no tokens");
  fs::remove(path("bpe") / "merges.txt");
  check({{encode(at("bpe")), 1, {"merges.txt is missing"}},
         {encode(at("absent")), 1, {at("absent"), "no such folder"}},
         {encode(at("nothing")), 1, {at("nothing"), "no tokenizer"}},
         {encode("bpe:500"), 2, {"bpe:500"}},
         {{"data", "encode"}, 2, {"--tokenizer"}}});
}

TEST_F(Errors, TokenizerJson) {
  fs::create_directory(path("hf"));
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab += fmt::format("{}\"<0x{:02X}>\":{}", byte == 0 ? "" : ",", byte, byte);
  const auto write = [&](const std::string& more) {
    write_file_atomically(path("hf") / "tokenizer.json",
                          fmt::format("{{\"model\":{{\"type\":\"BPE\",\"byte_fallback\":true,"
                                      "\"merges\":[],\"vocab\":{{{}}}}}{}}}",
                                      vocab, more));
  };
  const std::vector<std::string> encode{"data", "encode", "--tokenizer", at("hf")};
  const auto refused = [&](const std::string& more, const std::string& part) {
    write(more);
    check({{encode, 1, {at("hf") + "/tokenizer.json", part}}});
  };
  write("");
  ASSERT_EQ(run(encode), 0) << err_;
  refused(R"(,"normalizer":{"type":"NFX"})", "normalizer.type is 'NFX', which is not supported");
  refused(R"(,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}})",
          "pre_tokenizer.pattern: the pattern '(a' has a group without its )");
  refused(R"(,"post_processor":{"type":"RobertaProcessing"})",
          "post_processor.cls is missing; expected a list");
  refused(R"(,"decoder":{"type":"CTD"})", "decoder.type is 'CTD'");
  refused(R"(,"added_tokens":[{"id":300,"content":"x"}])", "none with id 256");
  refused(R"(,"decoder":)" + std::string(50'000, '['), "nested more than 256 levels");
  // A pattern that never ends is found when a text meets it.
  write(R"(,"pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(A+)+c"}})");
  put("as.txt", std::string(3000, 'A') + "b c\n");
  check({{{"data", "prepare", "--text", at("as.txt"), "--tokenizer", at("hf"), "--output-dir",
           at("out")},
          1,
          {at("as.txt"), "'(A+)+c' takes too long"}}});
}

TEST_F(Errors, Options) {
  put("prompt.txt", "");
  put("list.toml", "max_steps = [1, 2]\n");
  put("twice.toml", "n_layer = 1\nn-layer = 2\n");
  put("alias.toml", "[model]\ncontext = 8\n[data]\nblock_size = 16\n");
  put("unknown.toml", "n_layr = 3\n");
  put("broken.toml", "n_layer = \n");
  const auto config = [&](const std::string& name) -> std::vector<std::string> {
    return {"train", "--config", at(name)};
  };
  check({{{"train", "--max-step", "3"}, 2, {"--max-steps"}},
         {{"trian"}, 2, {"train"}},
         {{"train", "--n-layer", "three"}, 2, {"n-layer", "three"}},
         {{"train", "--n-layer"}, 2, {"n-layer"}},
         {{"train", "--output-dir", ""}, 2, {"--output-dir", "empty"}},
         {{"train", "--config", ""}, 2, {"--config", "empty"}},
         {{"data", "prepare", "--output-dir", ""}, 2, {"--output-dir", "empty"}},
         {config("absent.toml"), 2, {"absent.toml"}},
         {config("list.toml"), 2, {"list.toml:1", "max_steps", "list"}},
         {config("twice.toml"), 2, {"twice.toml:2", "n-layer", "twice.toml:1"}},
         {config("alias.toml"), 2, {"alias.toml:2", "context is also set at", "alias.toml:4"}},
         {config("unknown.toml"), 2, {"unknown.toml:1", "n_layer"}},
         {config("broken.toml"), 2, {"broken.toml:1"}},
         {{"generate", "--model", at("nothing"), "--prompt-file", at("prompt.txt")},
          2,
          {"--prompt-file", "prompt.txt", "empty"}},
         {{"info"}, 2, {"BRRR_FAULT", "bogus", "checkpoint.write"}, {"BRRR_FAULT=bogus"}},
         {{"info"}, 2, {"kill:N", "kill:x"}, {"BRRR_FAULT=log.write=kill:x"}},
         {{"info"}, 2, {"BRRR_FAULT", "pause:MS"}, {"BRRR_FAULT=shard.write=pause:x"}}});
}

// In bf16 most weights are derived ones, made of what the file holds.
TEST_F(Errors, Generation) {
  prepare("bytes");
  ASSERT_EQ(run(train_on(at("bytes"), {"--n-embd", "32"})), 0) << err_;
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"generate",         "--model", at("run"),     "--prompt", "a",
                                  "--max-new-tokens", "1",       "--precision", "bf16"};
    put_options(args, more);
    return args;
  };
  ASSERT_EQ(run(generate({"--memory-limit", "1GiB"})), 0) << err_;
  check({{generate({"--memory-limit", "1"}), 2, {"--memory-limit", "unit"}},
         {generate({"--memory-limit", "1MiB"}),
          3,
          {"the model does not fit", "--memory-limit is 1.0 MiB", "fewer --max-new-tokens"}},
         {{"eval", "--model", at("run"), "--data", at("bytes/train.bin"), "--memory-limit", "1MiB"},
          3,
          {"the model does not fit", "--memory-limit is 1.0 MiB", "a smaller --batch-size"}}});
  // A source that the file lacks: another name of the same length.
  const fs::path file = path("run") / "model.safetensors";
  std::string bytes = read_file(file);
  const std::string name = "h.0.mlp.c_fc.weight";
  const size_t place = bytes.find(name);
  ASSERT_NE(place, std::string::npos);
  bytes[place + name.find("c_fc")] = 'x';
  write_file_atomically(file, bytes);
  fs::remove(path("run") / "checksums.json");
  check({{generate({}), 1, {"model.safetensors", "h.0.mlp.c_fc.weight"}}});
}

TEST_F(Errors, RecurrentModels) {
  const std::string text = text_path().string();
  ASSERT_EQ(run({"train", "--architecture", "lstm", "--text", text, "--n-layer", "1", "--n-embd",
                 "16", "--max-steps", "1", "--samples", "0", "--output-dir", at("lstm")}),
            0)
      << err_;
  put("prompts.jsonl", "{\"prompt\": \"a\"}\n");
  check({{{"generate", "--model", at("lstm"), "--prompt", "l", "--beam-size", "2"},
          1,
          {"--beam-size: the state of a recurrent model belongs to one text; leave it out"}},
         {{"generate", "--model", at("lstm"), "--prompts", at("prompts.jsonl")},
          1,
          {"--prompts: a recurrent model generates one text after the other"}},
         {{"train", "--architecture", "lstm", "--text", text, "--pack", "documents"},
          1,
          {"--pack documents", "leave it out"}},
         {{"train", "--architecture", "lstm", "--text", text, "--tie-word-embeddings", "true",
           "--embedding-size", "8"},
          2,
          {"--tie-word-embeddings needs an embedding as wide as the hidden state", "8 and"}}});
}

TEST_F(Errors, HelpSaysDefaultsInWords) {
  ASSERT_EQ(run({"train", "--help"}), 0);
  EXPECT_EQ(out_.find("[-1]"), std::string::npos) << out_;
  EXPECT_NE(out_.find("default: the seed"), std::string::npos);
}

TEST_F(Errors, PlacesThatCannotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read and write everything";
  fs::permissions(text_path(), fs::perms::none);
  fs::create_directory(path("closed"));
  fs::permissions(path("closed"), fs::perms::owner_read | fs::perms::owner_exec);
  put("open.txt", "some text\n");
  check({{{"train", "--text", text_path().string()}, 1, {text_path().string(), "readable"}},
         {{"data", "prepare", "--text", at("open.txt"), "--tokenizer", "byte", "--output-dir",
           (path("closed") / "out").string()},
          1,
          {"closed", "permissions"}}});
}

TEST_F(Errors, Budgets) {
  prepare("bytes");
  const auto train = [&](std::vector<std::string> more) { return train_on(at("bytes"), more); };
  check({{train({"--memory-limit", "6"}), 2, {"--memory-limit", "has no unit", "6GiB"}},
         {train({"--memory-limit", "0GiB"}), 2, {"above 0"}},
         {train({"--memory-limit", "-3GiB"}), 2, {"above 0"}},
         {train({"--memory-limit", "some"}), 2, {"6GiB", "'some'"}},
         {train({"--memory-limit", "6 gigs"}), 2, {"'gigs'", "6GiB"}},
         {train({"--memory-limit", "4000TiB"}), 2, {"more than this machine has"}},
         {train({"--memory-limit", "1MiB"}), 3, {"does not fit", "that fits is --memory-limit"}},
         {train({"--memory-limit", "1MiB", "--fit"}), 3, {"that fits is --memory-limit"}},
         {train({"--fit", "most"}), 2, {"--fit", "true, false or all"}},
         {{"plan", "--memory-limit", "1MiB", "--largest-batch", "--no-measure"},
          3,
          {"not even one sequence", "1.0 MiB"}},
         {{"plan", "--kernel-rates", "products=600,speed=3"}, 2, {"--kernel-rates", "'speed=3'"}},
         {{"plan", "--kernel-rates", "memory"}, 2, {"--kernel-rates", "memory=N", "'memory'"}},
         {{"plan", "--kernel-rates", "memory=0"}, 2, {"--kernel-rates", "above 0", "'0'"}},
         {{"plan", "--ranks", "2", "--link", "fast"}, 2, {"--link", "1Gbit,50us", "'fast'"}},
         {{"plan", "--link", "1Gbit", "--no-measure"}, 2, {"--link", "--ranks"}},
         {{"plan", "--compare-zero", "--no-measure"}, 2, {"--compare-zero", "--ranks"}},
         {{"plan", "a.toml", "b"}, 2, {"'a.toml'", "'b'"}},
         {{"plan", at("absent")}, 1, {"absent"}},
         {{"plan", "--svg", at("absent/x.svg"), "--no-measure"}, 1, {"x.svg"}}});
}

// A text that is read ahead and cannot fit with its tokens: refused before it is read, by its size
// alone. (It is a hole of a GiB: reading it would say that it is binary.)
TEST_F(Errors, ATextLargerThanTheBudget) {
  put("hole.txt", "");
  fs::resize_file(path("hole.txt"), uintmax_t{1} << 30);
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"train",          "--text", at("hole.txt"),   "--output-dir",
                                  at("run"),        "--json", "--memory-limit", "200MiB",
                                  "--eval-batches", "1"};
    put_options(args, more);
    return args;
  };
  const std::vector<std::string> parts{"1.00 GiB", "--memory-limit is 200.0 MiB", "data prepare"};
  check({{train({"--tokenize", "ahead"}), 3, {"--tokenize stream"}},
         {train({"--tokenize", "ahead", "--tokenizer", "byte"}), 3, {"5.00 GiB"}},
         {train({"--tokenize", "ahead", "--tokenizer", "bpe:300"}), 3, parts},
         {train({"--sampling", "documents"}), 3, parts},
         {train({}), 1, {"hole.txt", "binary"}}});
  // Where no run fits, a stream is no advice.
  for (const auto& [more, part] : {std::pair{"ahead", "Even with --tokenize stream the run needs"},
                                   {"documents", "Even from shards"}}) {
    const std::string option = std::string_view(more) == "ahead" ? "--tokenize" : "--sampling";
    check({{train({option, more, "--memory-limit", "1MiB"}),
            3,
            {"1.00 GiB", part, "a larger --memory-limit"}}});
    EXPECT_EQ(err_.find("Use --tokenize stream"), std::string::npos) << err_;
  }
  EXPECT_FALSE(fs::exists(path("run")));
}

// A budget below the text's size and below what the program takes: the refusal names the smallest
// budget that fits, and a run with it succeeds.
TEST_F(Errors, ABudgetBelowTheProgram) {
#if defined(BRRR_SANITIZED)
  GTEST_SKIP() << "the sanitizer takes memory of its own";
#endif
  std::string text = read_file(text_path());
  while (text.size() < (size_t{1} << 20)) text += text;
  put("long.txt", text);
  const auto train = [&](const std::string& budget) {
    return small_run(
        "run", {"--text", at("long.txt"), "--max-steps", "1", "--fit", "--memory-limit", budget});
  };
  const std::string words = "that fits is --memory-limit ";
  EXPECT_EQ(run(train("1MiB")), 3) << err_;
  ASSERT_NE(err_.find(words), std::string::npos) << err_;
  EXPECT_EQ(err_.find("--tokenize stream"), std::string::npos) << err_;
  const size_t begin = err_.find(words) + words.size();
  const std::string least = err_.substr(begin, err_.find_first_of(" ;\n", begin) - begin);
  EXPECT_EQ(run(train(least)), 0) << least << "\n" << err_;
}

TEST_F(Errors, Profile) {
  check({{{"profile", "--inference", "--generate"}, 2, {"--inference and --generate"}},
         {{"profile", "--generate", "--prompt", "64"}, 2, {"--prompt 64", "context, which is 64"}},
         {{"profile", "--generate", "--prompt", "-1"}, 2, {"--prompt"}},
         {{"profile", "--seconds", "-1"}, 2, {"--seconds"}},
         {{"profile", "--fit"}, 2, {"--fit", "brrr plan"}},
         {{"profile", "--text", at("absent.txt")}, 1, {"absent.txt"}},
         {{"profile", "--text", at("binary.txt")}, 1, {"binary"}},
         {{"profile", "--disable-pass", "nonsense"}, 2, {"nonsense", "match_attention"}},
         {{"profile", at("absent")}, 1, {"absent"}},
         {{"profile", "a.toml", "b"}, 2, {"'a.toml'", "'b'"}},
         {{"profile", "--memory-limit", "20MiB"}, 3, {"--memory-limit", "--batch-size"}},
         {{"profile", "--html", at("absent/x.html")}, 1, {"absent"}},
         {{"profile", "--trace", at("absent/x.json")}, 1, {"absent"}}});
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(Errors, Report) {
  put("file", "x");
  check({{{"report"}, 2, {"expected the folder of a run"}},
         {{"report", at("absent")}, 1, {"absent: there is no such folder"}},
         {{"report", at("file")}, 1, {"there is no such folder"}},
         {{"report", at("nothing")}, 1, {"holds no run", "log.jsonl"}},
         {{"report", at("nothing"), "--serve"}, 1, {"holds no run"}},
         {{"report", at("nothing"), "--port", "70000"}, 2, {"--port", "65535"}},
         {{"report", at("nothing"), "--port", "abc"}, 2, {"--port", "abc"}},
         {{"report", at("nothing"), "--json", "--serve"}, 2, {"--json", "--serve"}},
         {{"train", "--live-port", "70000"}, 2, {"--live-port", "65535"}},
         {{"train", "--live-port", "abc"}, 2, {"--live-port", "abc"}}});
  ASSERT_EQ(run(small_run("run", {"--max-steps", "3"})), 0) << err_;
  check({{{"report", at("run"), "--output", at("absent/x.html")}, 1, {"absent/x.html"}},
         {{"report", at("run"), "--output", at("nothing")}, 1, {"nothing"}}});
}

TEST_F(Errors, Ladder) {
  put("file", "x");
  fs::create_directory(path("broken"));
  put("broken/ladder.json", "{\"precision");
  check({{{"ladder", "nonsense"}, 2, {"no ladder 'nonsense'", "gpt2, memory", "precision"}},
         {{"ladder", "gpt2", "--rounds", "0"}, 2, {"--rounds"}},
         {{"ladder", "gpt2", "--n-layer", "x"}, 2, {"--n-layer"}},
         {{"ladder", "gpt2", "--warp", "9"}, 2, {"--warp"}},
         {{"ladder", "gpt2", "--output-dir", at("file")}, 1, {"file"}},
         {{"ladder", "gpt2", "--output-dir", at("out"), "--html", at("absent/x.html")},
          1,
          {"absent"}},
         {{"ladder", "gpt2", "--output-dir", at("broken")},
          1,
          {"ladder.json", "--again", "another --output-dir"}}});
  // What concerns only a run's folder, log or progress is refused, by whatever name, and not
  // listed.
  std::vector<Case> meaningless;
  for (const char* option :
       {"--resume", "--resume-from-checkpoint=x", "--overwrite", "--run-name=x", "--save-steps=1",
        "--save-total-limit=1", "--save-strategy=no", "--eval-steps=1", "--logging-steps=1",
        "--samples=1", "--report-to=none", "--live", "--live-port=1", "--disable-tqdm", "--explain",
        "--elastic", "--max-restarts=1", "--peer-checkpoint-steps=1"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    meaningless.push_back({{"ladder", "gpt2", "--output-dir", at("out"), option},
                           2,
                           {name + " does not apply to a ladder", "saves no run"}});
  }
  check(meaningless);
  EXPECT_FALSE(fs::exists(path("out") / "ladder.json"));
  ASSERT_EQ(run({"ladder", "--help"}), 0) << err_;
  for (const char* name : {"--resume", "save-steps", "--samples", "live", "disable-tqdm"})
    EXPECT_EQ(out_.find(name), std::string::npos) << name;
  for (const char* name : {"--batch-size", "--precision", "--optim", "--threads", "--text"})
    EXPECT_NE(out_.find(name), std::string::npos) << name;
  const io::FolderLock other(path("nothing"), "");
  check({{{"ladder", "overhead", "--output-dir", at("nothing")},
          1,
          {"another process is climbing ladders in", "another folder"}}});
  // What cannot be read is replaced when it is measured again; a page that cannot be written ends
  // no ladder.
  std::vector<std::string> climb{"ladder", "overhead", "fusion",  "--quick",      "--rounds",
                                 "1",      "--json",   "--again", "--output-dir", at("broken")};
  if (fs::exists("/dev/full")) climb.insert(climb.end(), {"--html", "/dev/full"});
  EXPECT_EQ(run(climb), fs::exists("/dev/full") ? 1 : 0) << err_;
  EXPECT_EQ(json()["ladders"].size(), 2u);
  const auto lines_with = [&](const std::string& part) {
    int count = 0;
    for (size_t at = 0; (at = err_.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
  };
  EXPECT_EQ(lines_with("ladder.json"), 1) << err_;
  EXPECT_EQ(lines_with("it is replaced"), 1) << err_;
  EXPECT_EQ(lines_with("continuing without the page"), fs::exists("/dev/full") ? 1 : 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(read_file(path("broken") / "ladder.json")).size(), 2u);
}

// The device is full in the middle of a save: the checkpoints before it stay usable.
TEST_F(Errors, AFullDiskLeavesEarlierCheckpoints) {
  ASSERT_EQ(run(small_run("full", {"--max-steps", "9"})), 0) << err_;
  check({{{"train", "--resume", at("full"), "--max-steps", "20", "--json"},
          1,
          {"free some space"},
          {"BRRR_FAULT=safetensors.write=enospc"}}});
  EXPECT_EQ(run({"train", "--resume", at("full"), "--max-steps", "12", "--json"}), 0) << err_;
}

// The model that a run leaves behind has a checksum: damage is noticed by whoever reads it.
TEST_F(Errors, ADamagedFinalModelIsNoticed) {
  ASSERT_EQ(run(small_run("run", {"--max-steps", "9"})), 0) << err_;
  const fs::path model = path("run") / "model.safetensors";
  std::string bytes = read_file(model);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  write_file_atomically(model, bytes);
  const std::vector<std::string> parts{model.string(), "is damaged", "checkpoint-000009"};
  check({{{"generate", "--model", at("run"), "--prompt", "a"}, 1, parts},
         {{"eval", "--model", at("run"), "--text", text_path().string()}, 1, parts},
         {small_run("next", {"--init-from", at("run")}), 1, parts}});
  fs::remove(path("run") / "checksums.json");  // replaced on purpose
  EXPECT_EQ(run({"eval", "--model", at("run"), "--text", text_path().string()}), 0) << err_;
  // A run that goes on writes both anew.
  ASSERT_EQ(run({"train", "--resume", at("run"), "--max-steps", "12"}), 0) << err_;
  EXPECT_TRUE(fs::exists(path("run") / "checksums.json"));
  EXPECT_EQ(run({"eval", "--model", at("run"), "--text", text_path().string()}), 0) << err_;
  put("run/checksums.json", "{}");
  check({{{"generate", "--model", at("run"), "--prompt", "a"}, 1, {"delete checksums.json"}}});
}

TEST_F(Errors, AModelThatIsNot) {
  check({{{"generate", "--model", "nope", "--prompt", "a"}, 1, {"no folder nope", "brrr train"}}});
}

// A damaged line of the log is told and left out; the run goes on.
TEST_F(Errors, ADamagedLogDoesNotStopTheRun) {
  ASSERT_EQ(run(small_run("log", {"--max-steps", "9"})), 0) << err_;
  const fs::path log = path("log") / "log.jsonl";
  std::string text = read_file(log);
  text[text.find('\n') + 1] = '\xff';
  write_file_atomically(log, text);
  EXPECT_EQ(run({"train", "--resume", at("log"), "--max-steps", "12"}), 0) << err_;
  EXPECT_NE((out_ + err_).find("log.jsonl: line 2"), std::string::npos) << err_;
  EXPECT_EQ(read_file(log).find('\xff'), std::string::npos);
}

}  // namespace
}  // namespace brrr::test
