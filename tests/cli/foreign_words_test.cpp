// Verbs and options of llama.cpp, ollama, Hugging Face and PEFT: read as ours, or refused in one
// sentence that names our way; files that are no model say what they are at every door.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "base/file.h"
#include "support/temp_folder.h"

namespace brrr {
namespace {

using namespace std::literals;

class ForeignWords : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(BRRR_BINARY)) GTEST_SKIP() << "the program is not built";
  }
  /// Standard error and standard output of `brrr ARGUMENTS` in the folder.
  std::string said(const std::string& arguments, int code) {
    const std::string at = folder_.path().string();
    const std::string command =
        fmt::format("cd '{0}' && BRRR_OFFLINE=1 '{1}' {2} </dev/null >'{0}/out' 2>&1", at,
                    BRRR_BINARY, arguments);
    const int status = std::system(command.c_str());
    const std::string text = read_file(folder_ / "out");
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, code) << arguments << ": " << text;
    return text;
  }
  void expect(const std::string& arguments, int code, const std::string& part) {
    const std::string text = said(arguments, code);
    EXPECT_NE(text.find(part), std::string::npos)
        << arguments << "\nexpected: " << part << "\ngot: " << text;
  }
  test::TempFolder folder_;
};

TEST_F(ForeignWords, VerbsOfOthersAreOurs) {
  for (const auto& [theirs, ours] : {std::pair{"chat", "generate"},
                                     {"sample", "generate"},
                                     {"perplexity", "eval"},
                                     {"tokenize", "data encode"},
                                     {"detokenize", "data decode"},
                                     {"convert", "export"},
                                     {"convert_hf_to_gguf", "export"},
                                     {"benchmark", "bench"},
                                     {"finetune", "train"},
                                     {"quantise", "quantize"},
                                     {"embeddings", "embed"}})
    expect(fmt::format("{} --help", theirs), 0, fmt::format("usage: brrr {} ", ours));
  expect("help chat", 0, "usage: brrr generate");
}

TEST_F(ForeignWords, VerbsThatWeLackSaySo) {
  expect("serve m", 2, "serve: there is no server yet; `");
  expect("server", 2, "generate --interactive");
  expect("pull gpt2", 2, "name a model of the Hugging Face Hub");
}

TEST_F(ForeignWords, ShortOptionsAreOurs) {
  // Every value arrives: the message on the missing model comes last.
  expect("generate -m none -p 'a b' -n 3 -t 1 -s 4 --temp 0.5", 1, "there is no folder none");
  expect("generate --model none --n-predict x", 2,
         "--max-new-tokens: expected a whole number from 1 to");
  expect("generate -m none --n_predict=x", 2, "--max-new-tokens: expected a whole number");
  expect("eval -m none -f text.txt -c 0 -b 2", 1, "none");
  expect("bench step -t x", 2, "--threads: expected a whole number");
  expect("generate -m none -c 512 -n 3", 1, "there is no folder none");
  expect("generate -m none --ctx-size x", 2, "--context: expected a whole number");
  expect("train -c x", 2, "--context: expected a whole number");
  expect("generate --prompt -n --model none", 1, "there is no folder none");
}

TEST_F(ForeignWords, OptionsThatWeLackSaySo) {
  expect("export -m none --ctx-size 512", 2, "--ctx-size: the whole context of the model is used");
  expect("generate -m none -ngl 99", 2, "choose it by --device");
  expect("generate -m none --lora-r 8", 2, "--lora-r N` trains an adapter");
  expect("generate -m none --load-in-8bit", 2, "--precision int8, int8-weight-only or int4");
  expect("train --lora-r 8", 2, "--lora-r adapts a trained model: it needs --init-from FOLDER");
  expect("train --bnb_4bit_quant_type nf4", 2, "--load-in-4bit-type nf4 chooses a format for");
  expect("train --bnb_4bit_quant_type nf5", 2,
         "--bnb-4bit-quant-type: expected one of int4, nf4, fp4");
  expect("generate -m none --bnb-4bit-quant-type nf4", 2, "--load-in-4bit with --lora-r");
  expect("train --load_in_8bit", 2,
         "--load-in-8bit holds the model below an adapter in integers, which are not trained "
         "themselves: it needs --lora-r, or --init-from");
  expect(
      "plan --no-load-in-8bit --lora_alpha none --n-layer 1 --n-embd 16 --n-head 1 "
      "--no-measure",
      0, "arena");
  expect("generate -z", 2, "unknown option '-z'");
}

// PEFT, TRL, axolotl, llama.cpp and vLLM.
TEST_F(ForeignWords, OptionsOfAdaptersAreOurs) {
  const std::string none = "generate -m none ";
  expect(none + "--lora a.bin", 1, "--adapter a.bin: there is no folder 'a.bin'");
  expect(none + "--lora-scaled a.gguf 0.5", 1, "--adapter a.gguf=0.5: there is no folder 'a.gguf'");
  expect(none + "--lora-scaled a.gguf:0.5", 1, "--adapter a.gguf=0.5: there is no folder 'a.gguf'");
  expect(none + "--enable-lora --max-loras 2 --lora-modules x=a y=b", 1,
         "--adapter x=a: there is no folder 'a'");
  expect("quantize --enable-lora", 2, "--lora-r N` trains an adapter");
  const std::string needs_model = "--lora-r adapts a trained model: it needs --init-from FOLDER";
  for (const char* options :
       {"--use_peft", "--use_peft --lora_r 4 --lora_target_linear true", "--lora_rank 4",
        "--adapter lora", "--adapter qlora", "--qlora", "--lora_r 4 --lora_dropout 0.1",
        "--use_peft --bnb_4bit_compute_dtype bfloat16 --load_in_4bit --bf16",
        "--lora_r 4 --lora_target_modules q_proj v_proj --bnb_4bit_use_double_quant false"})
    expect(std::string("train ") + options, 2, needs_model);
  expect("train --adapter some/folder", 2, "--adapter: expected lora or qlora; `--lora-r N`");
  expect("train --bnb_4bit_compute_dtype int8", 2, "expected bfloat16, float16 or float32; got");
  expect("train --bnb_4bit_use_double_quant true", 2, "are held as they are");
  expect("train --assistant_only_loss", 2,
         "expected false: --task chat and --task dpo learn answers");
  expect("train --task chat --completion_only_loss false", 2,
         "expected true: --task chat and --task dpo learn");
  expect("train --beta 0.2", 2, "--dpo-beta is for pairs of answers: it needs --task dpo");
  expect("train --loss_type ipo", 2, "--dpo-loss is for pairs of answers: it needs --task dpo");
  expect("train --ref_model gpt2", 2, "the reference of --task dpo is the model that");
  expect("train --max_length x", 2, "--max-length: expected a whole number");
  expect("train --nnodes 2", 2, "brrr launch -n N train");
  expect("generate -m none --nnodes 2", 2, "brrr launch -n N train");
  expect("generate -m none --nproc_per_node 2", 2, "brrr launch -n N train");
  expect("train --nproc_per_node x", 2, "expected a whole number");
  expect("launch --nproc_per_node x train", 2, "expected a whole number");
  expect("ladder --lora-r 4", 2, "a ladder times the training of whole models, not of adapters");
}

TEST_F(ForeignWords, FilesThatAreNoModelSayWhatTheyAre) {
  write_file_atomically(folder_ / "m.gguf", "GGUF\3\0\0\0"sv);
  write_file_atomically(folder_ / "m.bin", "PK\3\4\0\0\10\10\0\0archive/data.pkl"sv);
  write_file_atomically(folder_ / "x.npy", "\x93NUMPY\1\0v\0{'descr': '<f4'"sv);
  write_file_atomically(folder_ / "m.onnx", "\x89PNG\r\n\x1a\n"sv);
  write_file_atomically(folder_ / "text.txt", "To be, or not to be\n"sv);
  for (const char* door :
       {"generate m.gguf --prompt a", "generate --model m.gguf", "eval m.gguf text.txt",
        "embed m.gguf text.txt", "classify --model m.gguf text.txt", "fill-mask m.gguf text.txt",
        "run m.gguf", "export m.gguf", "plan m.gguf", "profile m.gguf",
        "train text.txt --init-from m.gguf", "bench decode --model m.gguf", "bench step m.gguf"})
    expect(door, 1, "m.gguf: truncated: the number of tensors needs 8 bytes at byte 8, and 0 are");
  for (const char* door : {"run m.bin", "generate --model m.bin", "plan m.bin"})
    expect(door, 1,
           "m.bin is a PyTorch file (a zip archive with a pickle); a state dict of torchvision's "
           "ResNet is read where the file's name ends with .pth");
  expect("run x.npy", 1, "x.npy is a NumPy array (.npy), which is an input and no model");
  expect("run m.onnx", 1, "m.onnx is a picture (PNG); expected an ONNX or .brrr file");
  expect("embed m.onnx text.txt", 1, "m.onnx is a picture (PNG)");
  expect("plan text.txt", 1, "text.txt is a text; expected the folder");
}

}  // namespace
}  // namespace brrr
