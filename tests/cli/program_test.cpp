// The program itself, run as users run it: exit codes, one line per error, one object for --json,
// and what goes where.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run_program.h"

namespace brrr {
namespace {

TEST_F(CommandLine, HelpIsOnStandardOutput) {
  for (const char* arguments :
       {"", "--help", "-h", "help", "train --help", "train -h", "help train", "data --help",
        "data encode --help", "help data encode", "info --help", "eval --help", "generate --help",
        "completion --help", "train --n_layer 3 --help"}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 0) << arguments;
    EXPECT_NE(o.out.find("usage: brrr"), std::string::npos) << arguments << "\n" << o.out;
    EXPECT_EQ(o.err, "") << arguments;
    EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << "colour without a terminal";
  }
  EXPECT_TRUE(run("--version").out.starts_with("brrr "));
}

TEST_F(CommandLine, HelpOfEveryVerbFitsAScreen) {
  for (const char* verb : {"",
                           "train",
                           "generate",
                           "eval",
                           "embed",
                           "classify",
                           "rerank",
                           "fill-mask",
                           "data",
                           "data prepare",
                           "data encode",
                           "data decode",
                           "data train-tokenizer",
                           "data images",
                           "plan",
                           "profile",
                           "bench",
                           "ladder",
                           "launch",
                           "report",
                           "runs",
                           "info",
                           "completion"}) {
    const Outcome o = run(std::string(verb) + " --help");
    EXPECT_EQ(o.code, 0) << verb;
    std::istringstream lines(o.out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), 100u) << verb << ": " << line;
  }
}

// An architecture's own options are listed when it is chosen, with the defaults of its preset.
TEST_F(CommandLine, HelpIsThatOfTheArchitecture) {
  const auto lists = [](const Outcome& o, const char* option) {
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out.find(option) != std::string::npos;
  };
  for (const char* verb : {"train", "plan", "profile"}) {
    const std::string name = verb;
    const Outcome plain = run((name + " --help").c_str());
    EXPECT_TRUE(lists(plain, "--[no-]bias")) << plain.out;
    EXPECT_FALSE(lists(plain, "--num-key-value-heads"));
    for (const char* chosen : {" --preset llama-1b --help", " --help --architecture llama"}) {
      const Outcome llama = run((name + chosen).c_str());
      EXPECT_TRUE(lists(llama, "--num-key-value-heads")) << llama.out;
      EXPECT_FALSE(lists(llama, "--[no-]bias"));
    }
  }
  EXPECT_TRUE(lists(run("train --preset llama-1b --help"), "[500000]"));
}

// The defaults are those of the preset that the options choose, whatever else a run needs.
TEST_F(CommandLine, HelpShowsTheDefaultsThatTheOptionsChoose) {
  const auto default_of = [&](const std::string& options, const std::string& option) {
    const Outcome o = run(("train " + options + " --help").c_str());
    EXPECT_EQ(o.code, 0) << options << o.err;
    const size_t at = o.out.find("  --" + option + " ");
    const size_t open = o.out.find('[', std::min(at, o.out.size()));
    return open == std::string::npos ? "" : o.out.substr(open, o.out.find(']', open) - open + 1);
  };
  const std::string pretraining = default_of("", "learning-rate");
  for (const char* fine_tuning :
       {"--task classify --preset fine-tune", "--preset fine-tune", "--task classify",
        "--task tokens --data nowhere.tsv", "--task classify --init-from nowhere/at/all",
        "--task regress --config nowhere.toml"}) {
    EXPECT_EQ(default_of(fine_tuning, "learning-rate"), "[5e-05]") << fine_tuning;
    EXPECT_EQ(default_of(fine_tuning, "preset"), "[fine-tune]") << fine_tuning;
  }
  EXPECT_NE(pretraining, "[5e-05]");
  EXPECT_EQ(default_of("--init-from nowhere/at/all", "preset"), "[fine-tune-text]");
  EXPECT_NE(default_of("--optim lion", "learning-rate"), pretraining);
  write_file_atomically(folder_ / "a.toml", "preset = \"llama-char\"\n");
  EXPECT_EQ(default_of("--config " + (folder_ / "a.toml").string(), "preset"), "[llama-char]");
}

// Architectures that share an option may say of it what holds for them.
TEST_F(CommandLine, HelpOfASharedOptionIsThatOfTheArchitecture) {
  EXPECT_NE(run("train --help --architecture llama").out.find("0: 8/3 of n-embd"),
            std::string::npos);
  const std::string neox = run("train --help --architecture gpt_neox").out;
  EXPECT_NE(neox.find("0: 4 times n-embd"), std::string::npos) << neox;
  EXPECT_EQ(neox.find("0: 8/3 of n-embd"), std::string::npos) << neox;
}

TEST_F(CommandLine, WrongUsageIsOneLineAndTwo) {
  expect_one_line(run("trian"), 2, "did you mean 'brrr train'");
  expect_one_line(run("xyzzy"), 2, "brrr --help");
  expect_one_line(run("data"), 2, "brrr data --help");
  expect_one_line(run("data encod"), 2, "did you mean 'brrr data encode'");
  expect_one_line(run("train --batch-sise 3"), 2, "did you mean '--batch-size'");
  expect_one_line(run("train --n-layer"), 2, "--n-layer needs a value");
  expect_one_line(run("train --n-layer x"), 2, "--n-layer: expected a whole number");
  expect_one_line(run("train notes.txt"), 2, "unexpected 'notes.txt'");
  expect_one_line(run("train absent.toml"), 2, "absent.toml");
  expect_one_line(run("completion bash extra"), 2, "extra");
  expect_one_line(run("info a b"), 2, "expected one model folder; got 2 words");
  expect_one_line(run("info a --env"), 2, "--env lists variables and looks at no model");
  expect_one_line(run("completion tcsh"), 2, "bash, zsh or fish");
  expect_one_line(run("eval"), 2, "--text FILE... or --data FILE...");
  expect_one_line(run("generate --top-p 0"), 2, "--top-p");
  expect_one_line(run("generate --prompt a --prompt-file in"), 2, "not both");
  expect_one_line(run("data encode"), 2, "--tokenizer");
  expect_one_line(run("data encode --tokenizer char"), 2, "byte, gpt2, or the folder");
  expect_one_line(run("data prepare --tokenizer bpe:1 --text in", "some text"), 2, "bpe:N");
}

TEST_F(CommandLine, MissingFilesAreOneLineAndOne) {
  expect_one_line(run("data encode --tokenizer absent"), 1, "absent");
  expect_one_line(run("generate --prompt-file absent"), 1, "absent");
  expect_one_line(run("data train-tokenizer --text absent"), 1, "absent");
}

TEST_F(CommandLine, PrintConfigReadsBack) {
  const Outcome first = run("train --print-config --n_layer=2 --text a.txt");
  ASSERT_EQ(first.code, 0) << first.err;
  write_file_atomically(folder_ / "run.toml", first.out);
  const Outcome second = run("train run.toml --print-config");
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
}

TEST_F(CommandLine, EncodeKeepsLinesAndDecodeReversesIt) {
  const std::string text = "h\xc3\xa9llo\n\nlast line without its newline";
  const Outcome ids = run("data encode --tokenizer byte", text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_TRUE(ids.out.starts_with("104 195 169 108 108 111 10\n10\n108 ")) << ids.out;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), '\n'), 3);
  EXPECT_EQ(run("data decode --tokenizer byte", ids.out).out, text);
  EXPECT_EQ(run("data encode --tokenizer byte", "").out, "");

  const auto json = nlohmann::json::parse(run("data encode --tokenizer byte --json", "ab\nc").out);
  EXPECT_EQ(json["lines"], 2);
  EXPECT_EQ(json["tokens"], 4);
  EXPECT_EQ(json["ids"], (nlohmann::json{{97, 98, 10}, {99}}));
  EXPECT_EQ(nlohmann::json::parse(run("data encode --tokenizer byte --json", "").out)["ids"],
            nlohmann::json::array());
}

// Longer than a batch and than a chunk, with lines longer than a chunk: what is parallel stays in
// order.
TEST_F(CommandLine, LongInputsComeBack) {
  std::string text;
  for (int i = 0; i < 120'000; ++i)
    text += std::string(static_cast<size_t>(i * 7919 % 90), static_cast<char>('a' + i % 26)) + "\n";
  text += std::string(300'000, 'z');
  const Outcome ids = run("data encode --tokenizer byte", text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(run("data decode --tokenizer byte", ids.out).out, text);
}

TEST_F(CommandLine, DecodeNamesTheBadLine) {
  for (const char* bad : {"1 2\n3 x\n", "1\n99999999999\n", "1\n256\n", "1\n-1\n", "1\n2.5\n"}) {
    const Outcome o = run("data decode --tokenizer byte", bad);
    EXPECT_EQ(o.code, 1) << bad;
    EXPECT_NE(o.err.find("standard input, line 2: "), std::string::npos) << o.err;
  }
}

TEST_F(CommandLine, TrainTokenizerThenEncode) {
  write_file_atomically(folder_ / "text", "to be, or not to be: to be or not\n");
  const Outcome trained =
      run("data train-tokenizer --text text --vocab-size 262 --output-dir tok --json");
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(nlohmann::json::parse(trained.out)["vocab_size"], 262);
  const std::string text = "not to be\nor \xf0\x9f\x99\x82\n";
  const Outcome ids = run("data encode --tokenizer tok", text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(run("data decode --tokenizer tok", ids.out).out, text);
}

TEST_F(CommandLine, TokenizerJsonWithSpecialTokens) {
  std::string vocab = R"("<s>":0,"\u2581":257,"\u2581a":258,"a":259,"b":260)";
  for (int byte = 0; byte < 256; ++byte)
    vocab += fmt::format(R"(,"<0x{:02X}>":{})", byte, byte + 1);
  fs::create_directory(folder_ / "hf");
  write_file_atomically(
      folder_ / "hf" / "tokenizer.json",
      R"({"model":{"type":"BPE","byte_fallback":true,"merges":["\u2581 a"],"vocab":{)" + vocab +
          R"(}},"added_tokens":[{"id":0,"content":"<s>","special":true}],"normalizer":{"type":)"
          R"("Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace",)"
          R"("pattern":{"String":" "},"content":"\u2581"}]},"post_processor":{"type":)"
          R"("TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],)"
          R"("special_tokens":{"<s>":{"ids":[0]}}},"decoder":{"type":"Sequence","decoders":[{"type":)"
          R"("Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":)"
          R"("Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}})");
  const std::string text = "a b<s>\n a\xc3\xa9\n";
  const Outcome plain = run("data encode --tokenizer hf", text);
  EXPECT_EQ(plain.out, "258 257 260 0 257 11\n257 258 196 170 11\n") << plain.err;
  const Outcome special = run("data encode --tokenizer hf --add-special-tokens", text);
  EXPECT_EQ(special.out, "0 258 257 260 0 257 11\n0 257 258 196 170 11\n") << special.err;
  EXPECT_EQ(run("data decode --tokenizer hf", plain.out).out, "a b<s> \n a\xc3\xa9\n");
  EXPECT_EQ(run("data decode --tokenizer hf --skip-special-tokens", special.out).out,
            "a b \n a\xc3\xa9\n");
}

TEST_F(CommandLine, PrepareWritesShards) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "line " + std::to_string(i) + "\n";
  write_file_atomically(folder_ / "text", text);
  const Outcome o = run("data prepare --text text --tokenizer byte --output-dir shards --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["bytes"], text.size());
  EXPECT_GT(json["train_tokens"], json["val_tokens"]);
  EXPECT_TRUE(fs::exists(folder_ / "shards/train.bin"));
  EXPECT_TRUE(fs::exists(folder_ / "shards/val.bin"));
  EXPECT_EQ(nlohmann::json::parse(
                run("data prepare --text text --tokenizer byte --output-dir shards --json")
                    .out)["already_done"],
            true);
}

TEST_F(CommandLine, DataImagesDescribesPictures) {
  const std::string picture = "P6 2 3 255\n" + std::string(18, 'x');
  for (const char* name : {"cat/0.ppm", "cat/1.ppm", "dog/0.ppm"}) {
    fs::create_directories((folder_ / "pictures" / name).parent_path());
    write_file_atomically(folder_ / "pictures" / name, picture);
  }
  const Outcome text = run("data images pictures");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("pictures: 3 pictures of 2 classes"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("width 2; height 3"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("2 cat"), std::string::npos) << text.out;
  write_file_atomically(folder_ / "pictures/dog/1.png", picture.substr(0, 20));
  EXPECT_EQ(run("data images pictures --json").code, 0);
  const Outcome decoded = run("data images pictures --decode --json");
  EXPECT_EQ(decoded.code, 1);
  const auto set = nlohmann::json::parse(decoded.out)["sets"][0];
  EXPECT_EQ(set["images"], 4);
  EXPECT_EQ(set["classes"]["dog"], 2);
  EXPECT_EQ(set["width"]["median"], 2);
  EXPECT_EQ(set["unreadable"].size(), 1u);
  EXPECT_EQ(run("data images pictures --max-pixels 5").code, 1);
  expect_one_line(run("data images"), 2, "expected one folder of pictures");
  expect_one_line(run("data images absent"), 1, "no such file or folder");
}

TEST_F(CommandLine, InfoIsOneObject) {
  const Outcome o = run("info --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(std::count(o.out.begin(), o.out.end(), '\n'), 1);
  EXPECT_TRUE(json["isa"].is_string());
  EXPECT_GE(json["threads"], 1);
  EXPECT_GT(json["peak_tflops"]["f32"], 0.0);
  EXPECT_GT(json["bandwidth_gbps"], 0.0);
  EXPECT_TRUE(json["gpu"].is_string() || json["gpu"].is_array());
  EXPECT_EQ(json["formats"]["f16"]["largest"], 65504);

  const Outcome environment = run("info --env");
  EXPECT_EQ(environment.code, 0);
  EXPECT_NE(environment.out.find("BRRR_DATA"), std::string::npos);
  EXPECT_FALSE(nlohmann::json::parse(run("info --no-measure --json").out).contains("peak_tflops"));
}

TEST_F(CommandLine, CompletionsAreValidShell) {
  const Outcome o = run("completion bash");
  ASSERT_EQ(o.code, 0) << o.err;
  write_file_atomically(folder_ / "completion",
                        o.out +
                            "COMP_WORDS=(brrr train --learn); COMP_CWORD=2; _brrr\n"
                            "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr ev); COMP_CWORD=1; _brrr\n"
                            "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr train --precision b); COMP_CWORD=3; _brrr\n"
                            "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr train --n-layer 3 --preset = gpt2-m); COMP_CWORD=6; "
                            "_brrr\n"
                            "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr train --lr-schedule = =); COMP_CWORD=3; _brrr\n"
                            "printf '%s\\n' \"${#COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr train --config ''); COMP_CWORD=3; _brrr\n"
                            "printf '%s\\n' \"${#COMPREPLY[@]}\"\n"
                            "COMP_WORDS=(brrr data prepare --format ''); COMP_CWORD=4; _brrr\n"
                            "printf '%s\\n' \"${COMPREPLY[@]}\"\n");
  std::FILE* pipe = ::popen(("bash '" + (folder_ / "completion").string() + "' 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char buffer[4096] = {};
  const size_t n = std::fread(buffer, 1, sizeof buffer - 1, pipe);
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(std::string(buffer, n),
            "--learning-rate\neval\nbf16\ngpt2-medium\n4\n0\nllmc\nnanogpt\n");
  EXPECT_NE(run("completion zsh").out.find("#compdef brrr"), std::string::npos);
  EXPECT_NE(run("completion fish").out.find("complete -c brrr"), std::string::npos);
  EXPECT_NE(run("completion zsh").out.find("compadd -- fp32 bf16 fp16;"), std::string::npos);
  EXPECT_NE(run("completion fish").out.find("-l precision -x -a 'fp32 bf16 fp16 int8 "),
            std::string::npos);
  EXPECT_NE(run("completion fish").out.find("-l output-dir -r -F"), std::string::npos);
}

TEST_F(CommandLine, FullDiskAndClosedPipesAreNoticed) {
  if (fs::exists("/dev/full")) {
    const std::string command =
        fmt::format("'{}' --help >/dev/full 2>'{}'", BRRR_BINARY, (folder_ / "err").string());
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1);
    EXPECT_NE(read_file(folder_ / "err").find("standard output"), std::string::npos);
  }
  const std::string closed =
      fmt::format("bash -c \"set -o pipefail; '{}' train --help | true\" 2>'{}'", BRRR_BINARY,
                  (folder_ / "err").string());
  const int ignored = std::system(closed.c_str());
  EXPECT_TRUE(WIFEXITED(ignored));
  EXPECT_EQ(read_file(folder_ / "err"), "");
}

// What the parent closed is not opened again for something else: messages would be written there.
TEST_F(CommandLine, ClosedStandardStreamsHoldNoFiles) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * i % 83) + " of a text\n";
  write_file_atomically(folder_ / "text", text);
  for (const char* closed : {"<&- 2>/dev/null", "2>&-", "<&- 2>&-", "<&- >&- 2>&-"}) {
    const std::string command = fmt::format(
        "cd '{}' && '{}' train --text text --n-layer 1 --n-head 1 --n-embd 16 --context 16 "
        "--max-steps 4 --eval-steps 2 --eval-batches 1 --samples 0 --threads 1 --output-dir run "
        "--overwrite {}",
        folder_.path().string(), BRRR_BINARY, closed);
    EXPECT_EQ(std::system(command.c_str()), 0) << closed;
    size_t records = 0;
    std::istringstream log(read_file(folder_ / "run/log.jsonl"));
    for (std::string line; std::getline(log, line); ++records)
      EXPECT_TRUE(nlohmann::json::accept(line)) << closed << ": " << line;
    EXPECT_GE(records, 6u) << closed;
    EXPECT_EQ(run("eval --model run --text text").code, 0) << closed;
  }
  // Nor does a run end because what it says cannot be written.
  if (fs::exists("/dev/full")) {
    const std::string command = fmt::format(
        "cd '{}' && '{}' train --text text --n-layer 1 --n-head 1 --n-embd 16 --context 16 "
        "--max-steps 4 --eval-batches 1 --threads 1 --output-dir run --overwrite 2>/dev/full",
        folder_.path().string(), BRRR_BINARY);
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  // Nor because its reader went away, unlike a verb whose product is what it prints.
  const auto unread = [&](const std::string& words) {
    const std::string command = fmt::format(
        "cd '{}' && bash -c '(sleep 0.2; exec \"{}\" {}) | true; exit ${{PIPESTATUS[0]}}' 2>err",
        folder_.path().string(), BRRR_BINARY, words);
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const std::string training =
      "train --text text --n-layer 1 --n-head 1 --n-embd 16 --context 16 --max-steps 40 "
      "--logging-steps 1 --eval-steps 20 --eval-batches 1 --threads 1 --output-dir run --overwrite";
  const auto expect_whole = [&] {
    const std::string log = read_file(folder_ / "run/log.jsonl");
    EXPECT_GE(std::count(log.begin(), log.end(), '\n'), 42);
    EXPECT_NE(log.find("\"finished\""), std::string::npos) << log;
    EXPECT_EQ(run("eval --model run --text text").code, 0);
  };
  for (const char* live : {"", " --live"}) {
    EXPECT_EQ(unread(training + live + " 2>&1"), 0);
    expect_whole();
  }
  EXPECT_EQ(unread(training + " --json"), 128 + SIGPIPE) << "the JSON is lost";
  EXPECT_EQ(read_file(folder_ / "err").find("brrr:"), std::string::npos)
      << read_file(folder_ / "err");
  expect_whole();
  EXPECT_EQ(unread("data prepare --text text --tokenizer byte --output-dir prepared 2>&1"), 0);
  EXPECT_EQ(run("train --data prepared --print-config").code, 0);
  EXPECT_EQ(unread("train --help"), 128 + SIGPIPE);
  EXPECT_EQ(read_file(folder_ / "err"), "");
  EXPECT_NE(std::system(fmt::format("'{}' info --env >&- 2>/dev/null", BRRR_BINARY).c_str()), 0)
      << "what was asked for is lost, and nobody is told";
}

}  // namespace
}  // namespace brrr
