// Files of PyTorch against what PyTorch put into them (tests/golden/make_torch_goldens.py), and
// files that are refused.

#include "formats/pickle/torch_file.h"

#include <gtest/gtest.h>

#include <set>

#include "base/errors.h"
#include "formats/pickle/pickle_machine.h"
#include "formats/safetensors.h"
#include "support/models_folder.h"
#include "support/temp_folder.h"

namespace brrr::test {
namespace {

using io::TorchFile;

const io::SafetensorsFile& torch_goldens() {
  static const io::SafetensorsFile file(fs::path(BRRR_SOURCE_DIR) / "tests" / "golden" /
                                        "torch_files.safetensors");
  return file;
}

std::span<const std::byte> torch_bytes(const std::string& name) {
  return torch_goldens().get("file:" + name).bytes;
}

void check_torch_file(const TorchFile& file, const std::string& name) {
  size_t tensors = 0;
  file.each([&](const TensorView& tensor) {
    ++tensors;
    const TensorView& wanted = torch_goldens().get(name + ":" + tensor.name);
    EXPECT_EQ(tensor.dtype, wanted.dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, wanted.shape) << tensor.name;
    std::vector<std::byte> bytes(wanted.bytes.size());
    file.read(tensor, bytes);
    EXPECT_TRUE(std::ranges::equal(bytes, wanted.bytes)) << name << " " << tensor.name;
    EXPECT_TRUE(tensor.bytes.empty() || std::ranges::equal(tensor.bytes, wanted.bytes));
    EXPECT_EQ(file.find(tensor.name), &tensor);
  });
  size_t expected = 0;
  for (const TensorView& t : torch_goldens().tensors()) expected += t.name.starts_with(name + ":");
  EXPECT_EQ(tensors, expected) << name;
  EXPECT_EQ(file.find("nothing"), nullptr);
}

TEST(TorchFiles, HoldWhatPyTorchPutIn) {
  int files = 0;
  for (const char* name :
       {"state.pth", "state-legacy.pth", "checkpoint.pth", "checkpoint-legacy.pth", "views.pth",
        "views-legacy.pth", "kinds.pth", "kinds-legacy.pth", "parallel.pth", "parameters.pth",
        "tied.pth", "complex.pth", "protocol2.pth", "protocol4.pth", "protocol5.pth", "again.pth",
        "deflated.pth"}) {
    const auto bytes = torch_bytes(name);
    check_torch_file(TorchFile(bytes, name), name);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_TRUE(TorchFile::recognises(text.substr(0, 4096))) << name;
    ++files;
  }
  EXPECT_EQ(files, 17);
  EXPECT_FALSE(TorchFile::recognises("PK\x03\x04 something else"));
  EXPECT_FALSE(TorchFile::recognises("text"));
}

TEST(TorchFiles, AreMapped) {
  const TempFolder folder;
  const auto bytes = torch_bytes("state.pth");
  write_file_atomically(folder / "state.pth",
                        {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const TorchFile file(folder / "state.pth");
  check_torch_file(file, "state.pth");
  const TensorView* weight = file.find("conv.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_FALSE(weight->bytes.empty());
  file.let_go(weight->bytes);
  file.let_go(torch_bytes("state.pth"));  // not its own
  EXPECT_USER_ERROR(TorchFile(folder / "none.pth"), "none.pth");
}

TEST(TorchFiles, TensorsOfOtherTypesAreNamed) {
  const TorchFile file(torch_bytes("complex.pth"), "complex.pth");
  int foreign = 0;
  file.each_foreign([&](const ForeignTensor& tensor) {
    EXPECT_EQ(tensor.name, "c");
    EXPECT_EQ(tensor.dtype, "ComplexFloatStorage");
    ++foreign;
  });
  EXPECT_EQ(foreign, 1);
  EXPECT_USER_ERROR(file.find("c"), "tensor 'c' has the type ComplexFloatStorage");
}

TEST(TorchFiles, NothingIsCalled) {
  const auto refuse = [](const std::string& name, const std::string& message) {
    EXPECT_USER_ERROR(TorchFile(torch_bytes(name), name), name + message);
  };
  refuse("system.pth", ": calls posix.system, which is never run");
  refuse("eval.pth", ": calls builtins.eval, which is never run");
  refuse("namespace.pth", ": calls argparse.Namespace, which is never run");
  refuse("numpy.pth", ": calls numpy");
  refuse("text.pth", " holds no tensors with names");
  refuse("circle.pth", ": its dicts and lists are nested too deeply, or in a circle");
  refuse("no-pickle.pth", " is a zip archive without data.pkl");
  refuse("big-endian.pth", " was saved on a machine with the high byte first");
  refuse("no-storage.pth", ": the file archive/data/0 is missing in it");
  refuse("short-storage.pth", ": truncated: tensor '");
  refuse("expanded.pth",
         ": tensor 'a' of sizes [1000] and strides [0] does not fit its storage of 1");
  refuse("script.pt", " is a TorchScript file");
  EXPECT_USER_ERROR(TorchFile({}, "empty.pth"), "empty.pth is no file that PyTorch saved");
}

TEST(TorchFiles, TruncatedFilesAreRefused) {
  for (const char* name : {"state.pth", "views-legacy.pth", "deflated.pth"}) {
    const auto bytes = torch_bytes(name);
    for (size_t size = 0; size < bytes.size(); size += 13)
      EXPECT_THROW(TorchFile(bytes.first(size), name), UserError) << name << " " << size;
  }
}

TEST(TorchFiles, DamagedFilesAreRefusedOrRead) {
  for (const char* name : {"views.pth", "checkpoint-legacy.pth", "deflated.pth"}) {
    const auto whole = torch_bytes(name);
    for (size_t at = 0; at < whole.size(); at += 3) {
      std::vector<std::byte> bytes(whole.begin(), whole.end());
      bytes[at] ^= std::byte{0x41};
      try {
        const TorchFile file(bytes, name);
        file.each([&](const TensorView& tensor) {
          std::vector<std::byte> values(static_cast<size_t>(tensor.shape.elements()) *
                                        bytes_of(tensor.dtype));
          file.read(tensor, values);
        });
      } catch (const UserError& e) {
        EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
      }
    }
  }
}

io::PickleValue::Kind kind_of_pickle(const std::string& text) {
  return io::Pickle(std::as_bytes(std::span(text)), "x.pkl").root().kind;
}

/// A file of the old format whose root and list of keys are these pickles.
std::string legacy_file(const std::string& root, const std::string& keys, const std::string& rest) {
  const std::string magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  return magic + "I1001\n." + "(d." + root + "." + keys + "." + rest;
}

/// A vector of 2 numbers in the storage 'k' of 2 elements.
std::string vector_pickle(const std::string& storage) {
  return "ctorch._utils\n_rebuild_tensor\n((S'storage'\nctorch\n" + storage +
         "\nS'k'\nS'cpu'\nI2\ntQI0\nI2\n\x85I1\n\x85tR";
}

TEST(TorchFiles, DamageOfOldFilesIsSaid) {
  const auto refuse = [](const std::string& bytes, const std::string& message) {
    EXPECT_USER_ERROR(TorchFile(std::as_bytes(std::span(bytes)), "x.pth"), "x.pth" + message);
  };
  const std::string number("\2\0\0\0\0\0\0\0", 8), values(8, 'v');
  const std::string root = "(dS'a'\n" + vector_pickle("FloatStorage") + "s", keys = "(lS'k'\na";
  const std::string good = legacy_file(root, keys, number + values);
  const TorchFile file(std::as_bytes(std::span(good)), "x.pth");
  ASSERT_NE(file.find("a"), nullptr);
  EXPECT_EQ(file.find("a")->bytes.size(), 8u);
  refuse(good.substr(0, good.size() - 1), ": truncated: the storage 'k' ends beyond the file");
  refuse(good.substr(0, good.size() - 10), ": truncated: the storage 'k' ends beyond the file");
  refuse(legacy_file(root, "(l", ""), ": tensor 'a': its storage 'k' is missing");
  refuse(legacy_file(root, "(lS'x'\na", number), ": its storage 'x' belongs to no tensor");
  refuse(legacy_file("(dS'a'\n" + vector_pickle("OddStorage") + "s", keys, number),
         ": holds tensors of OddStorage, which is not read from old files");
  refuse(legacy_file("(dS'a'\n" + vector_pickle("FloatStorage") + "sS'a'\n" +
                         vector_pickle("FloatStorage") + "s",
                     keys, number + values),
         ": two tensors have the name 'a'");
  refuse(legacy_file("(dS'" + std::string(5000, 'a') + "'\n" + vector_pickle("FloatStorage") + "s",
                     keys, number + values),
         ": a tensor's name is too long");
  std::string version = good;
  version.replace(version.find("1001"), 4, "1002");
  refuse(version, ": its protocol version is unknown; expected 1001");
  std::string order = good;
  order.replace(order.find("(d."), 3, "(dS'little_endian'\nI0\ns.");
  refuse(order, " was saved on a machine with the high byte first");
}

TEST(TorchFiles, DamageOfZipArchivesIsSaid) {
  const auto whole = torch_bytes("state.pth");
  const std::string good(reinterpret_cast<const char*>(whole.data()), whole.size());
  const auto refuse = [](const std::string& bytes, const std::string& message) {
    EXPECT_USER_ERROR(TorchFile(std::as_bytes(std::span(bytes)), "x.pth"), "x.pth" + message);
  };
  /// Every entry of the directory with one byte set.
  const auto with_byte = [&](size_t offset, char value) {
    std::string bytes = good;
    for (size_t at = bytes.find("PK\1\2"); at != std::string::npos;
         at = bytes.find("PK\1\2", at + 1))
      bytes[at + offset] = value;
    return bytes;
  };
  refuse("PK", " is no zip archive, or is truncated");
  refuse(good.substr(0, good.size() / 2), ": the directory of the zip archive is missing");
  refuse(with_byte(0, 'X'), ": the directory of the zip archive is damaged");
  refuse(with_byte(8, 1), ": the file archive/byteorder is encrypted");
  refuse(with_byte(10, 99),
         ": the file archive/byteorder is packed by method 99; expected stored or deflate");
  refuse(with_byte(10, 8), ": the file archive/byteorder in it is damaged or truncated");
}

TEST(Pickles, ReadTheValuesOfPython) {
  using Kind = io::PickleValue::Kind;
  EXPECT_EQ(kind_of_pickle("I12\n."), Kind::integer);
  EXPECT_EQ(kind_of_pickle("F1.5\n."), Kind::real);
  EXPECT_EQ(kind_of_pickle("(lp0\nI1\nag0\n."), Kind::list);
  EXPECT_EQ(kind_of_pickle("(dp0\nS'a'\nI1\ns."), Kind::dict);
  EXPECT_EQ(kind_of_pickle("N2\x85."), Kind::tuple);
  EXPECT_EQ(kind_of_pickle("((1N0K\1."), Kind::integer);
  const std::string minus("\x80\x02\x8a\x01\xfe.", 6);
  EXPECT_EQ(io::Pickle(std::as_bytes(std::span(minus)), "x").root().integer, -2);
}

TEST(Pickles, DamageIsSaid) {
  const auto refuse = [](const std::string& text, const std::string& message) {
    EXPECT_USER_ERROR(kind_of_pickle(text), message);
  };
  refuse("", "its pickle is truncated");
  refuse("K", "its pickle is truncated");
  refuse("I12", "its pickle is truncated");
  refuse("X\xff\xff\xff\xff", "its pickle is truncated");
  refuse(".", "takes a value that is not there");
  refuse("N(.", "takes a value that is not there");
  refuse("t", "goes back to a mark that is not there");
  refuse("h\1", "recalls a value that it did not store");
  refuse("Nr\xff\xff\xff\xff.", "a number in its memory is too large");
  refuse("Npx\n.", "a number in its memory is no number");
  refuse("Ix\n.", "an integer is no number");
  refuse("S'\n.", "a text lacks its quotes");
  refuse("(Nd.", "a key has no value");
  refuse("NNa.", "adds to a value that is no list or dict");
  refuse("\x80\x09.", "its protocol is 9; expected at most 5");
  refuse("cos\nsystem\n.", "calls os.system, which is never run");
  refuse("ios\nsystem\n.", "calls os.system, which is never run");
  refuse("itorch\nSize\n.", "makes an object in a way that PyTorch does not");
  refuse("NN\x93.", "a global has no name");
  refuse("ctorch\nFloatStorage\n)R.", "calls torch.FloatStorage in a way that is not known");
  refuse("NNR.", "the arguments of a call are no tuple");
  refuse("N)R.", "calls a value in a way that is not known");
  refuse("NNb.", "sets attributes of a value that has none");
  refuse("NQ.", "a storage of tensors is described otherwise");
  refuse("ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor lacks its storage");
  refuse("ccollections\nOrderedDict\n(N\x85l\x85R.", "an OrderedDict's items are no pairs");
  const std::string tensor =
      "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'"
      "\nI4\ntQI0\n";
  refuse(tensor + "NNtR.", "a tensor's sizes are no tuple, or too many");
  refuse(tensor + "N\x85)tR.", "a tensor's size is no integer");
  refuse(tensor + "K\1\x85)tR.", "a tensor has other numbers of sizes and strides");
  refuse("\xff.", "the instruction 0xff is unknown, or not allowed");
  refuse("(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI4\nI1\ntQ.",
         "holds a view of a storage");
  // Each call of a dict of three pairs makes six elements of two bytes.
  std::string many = "ccollections\nOrderedDict\nq\1(";
  many +=
      "]q\2(NN\x86NN\x86NN\x86NN\x86NN\x86NN\x86NN\x86NN\x86"
      "e\x85q\3";
  for (int i = 0; i < 1'100'000; ++i) many += "h\1h\3R";
  refuse(many, "its pickle makes more than 16000000 values");
}

TEST(TorchFiles, TheEfficientNetOfTheModelsIsRead) {
  const fs::path path = models_folder() / "efficientnet" / "efficientnet-lite0-57934424.pth";
  if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
  const TorchFile file(path);
  size_t tensors = 0;
  file.each([&](const TensorView&) { ++tensors; });
  EXPECT_EQ(tensors, 296u);
  const TensorView* stem = file.find("_conv_stem.weight");
  ASSERT_NE(stem, nullptr);
  EXPECT_EQ(stem->shape, (Shape{32, 3, 3, 3}));
  std::vector<float> values(32 * 27);
  file.read(*stem, std::as_writable_bytes(std::span(values)));
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value);
  EXPECT_NEAR(sum, -26.811376610887237, 1e-9);
}

}  // namespace
}  // namespace brrr::test
