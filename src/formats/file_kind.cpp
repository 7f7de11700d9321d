#include "formats/file_kind.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/errors.h"

namespace brrr::io {
namespace {

using namespace std::literals;

constexpr size_t kBeginning = 4096;
constexpr const char* kWantsFolder =
    "take the model's folder with config.json and model.safetensors, or its name on the Hugging "
    "Face Hub";
constexpr const char* kAsStateDict =
    "a state dict of torchvision's ResNet is read where the file's name ends with .pth; of other "
    "models take the folder with model.safetensors, which transformers writes by "
    "save_pretrained(FOLDER)";

struct FileMagic {
  size_t at = 0;  // byte at which it stands
  std::string_view bytes;
  const char* name;
  const char* advice;
  bool is_model = false;
};

constexpr FileMagic kFileMagics[] = {
    {0, "GGUF"sv, "a GGUF file, which is a model", "name it as one: --model FILE.gguf", true},
    {0, "lmgg"sv, "a GGML file, which is not read", kWantsFolder, true},
    {0, "tjgg"sv, "a GGML file, which is not read", kWantsFolder, true},
    {0, "fmgg"sv, "a GGML file, which is not read", kWantsFolder, true},
    {0, "algg"sv, "a GGML adapter, which is not read", kWantsFolder, true},
    {0, "\x93NUMPY"sv, "a NumPy array (.npy), which is an input and no model",
     "`brrr run MODEL --input NAME=FILE.npy` takes it"},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file, as Keras writes them, which is not read",
     kWantsFolder, true},
    {4, "TFL3"sv, "a TensorFlow Lite file, which is not read", kWantsFolder, true},
    {0, "\x80\x02"sv, "a Python pickle, such as an old PyTorch file", kAsStateDict, true},
    {0, "\x80\x03"sv, "a Python pickle", kAsStateDict, true},
    {0, "\x80\x04"sv, "a Python pickle", kAsStateDict, true},
    {0, "\x80\x05"sv, "a Python pickle", kAsStateDict, true},
    {0, "\x89PNG\r\n\x1a\n"sv, "a picture (PNG)", ""},
    {0, "\xff\xd8\xff"sv, "a picture (JPEG)", ""},
    {0, "GIF8"sv, "a picture (GIF)", ""},
    {8, "WEBP"sv, "a picture (WebP)", ""},
    {8, "WAVE"sv, "a sound (WAV)", ""},
    {0, "ID3"sv, "a sound (MP3)", ""},
    {0, "fLaC"sv, "a sound (FLAC)", ""},
    {0, "%PDF"sv, "a PDF document", ""},
    {0, "\x1f\x8b"sv, "a gzip archive", "unpack it first"},
    {0, "\x28\xb5\x2f\xfd"sv, "a Zstandard archive", "unpack it first"},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "an xz archive", "unpack it first"},
    {0, "BZh"sv, "a bzip2 archive", "unpack it first"},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it first"},
    {257, "ustar"sv, "a tar archive", "unpack it first"},
    {0, "PAR1"sv, "a Parquet file", ""},
    {0, "ARROW1"sv, "an Arrow file", ""},
    {0,
     "\x7f"
     "ELF"sv,
     "a program (ELF)", ""},
    {0, "version https://git-lfs"sv, "a pointer of Git LFS in place of a file",
     "fetch the file itself by `git lfs pull`, or take the model by its name on the Hub"},
};

FileKind text_kind(std::string name, std::string advice = "") {
  FileKind kind{std::move(name), std::move(advice)};
  kind.is_text = true;
  return kind;
}

/// The archives that PyTorch and NumPy write are zip files, told by the names in them.
FileKind kind_of_zip(std::string_view bytes) {
  if (bytes.find("data.pkl") != std::string_view::npos)
    return {"a PyTorch file (a zip archive with a pickle)", kAsStateDict, true};
  if (bytes.find("constants.pkl") != std::string_view::npos)
    return {"a TorchScript file, which is not read", "export it to ONNX by torch.onnx.export",
            true};
  if (bytes.find(".npy") != std::string_view::npos)
    return {"an archive of NumPy arrays (.npz), which are inputs and no model",
            "save each array by numpy.save, and give it by --input NAME=FILE.npy"};
  return {"a zip archive", "unpack it first"};
}

bool has_key(std::string_view json, std::string_view key) {
  return json.find('"' + std::string(key) + '"') != std::string_view::npos;
}

FileKind kind_of_json(std::string_view bytes) {
  if (has_key(bytes, "added_tokens") || has_key(bytes, "pre_tokenizer"))
    return text_kind("a tokenizer (tokenizer.json) and no model", "name the folder that holds it");
  if (has_key(bytes, "model_type") || has_key(bytes, "architectures"))
    return text_kind("the configuration of a model (config.json) without its weights",
                     "name the folder that holds both");
  return text_kind("a JSON file");
}

bool begins_with_html(std::string_view text) {
  std::string start(text.substr(0, 64));
  std::transform(start.begin(), start.end(), start.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

/// A JSON header behind its length in 8 bytes.
bool is_safetensors(std::string_view bytes) {
  if (bytes.size() < 10 || (bytes[8] != '{')) return false;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length >= 2 && length < uint64_t{1} << 40;
}

/// ir_version as field 1, and a field of ModelProto behind it.
bool begins_as_onnx(std::string_view bytes) {
  constexpr int kNewestIr = 64;
  if (bytes.size() < 4 || bytes[0] != 8 || bytes[1] < 1 || bytes[1] > kNewestIr) return false;
  const int field = static_cast<unsigned char>(bytes[2]) >> 3;
  const int wire = bytes[2] & 7;
  return field >= 2 && field <= 25 && (wire == 0 || wire == 2);
}

bool is_text(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) {
    const auto u = static_cast<unsigned char>(c);
    return u >= 0x20 || c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
}

}  // namespace

std::optional<FileKind> kind_of_bytes(std::string_view bytes) {
  if (bytes.empty()) return FileKind{"an empty file", ""};
  for (const FileMagic& m : kFileMagics)
    if (bytes.size() >= m.at && bytes.substr(m.at).starts_with(m.bytes))
      return FileKind{m.name, m.advice, m.is_model};
  if (bytes.starts_with("PK\x03\x04")) return kind_of_zip(bytes);
  if (is_safetensors(bytes) && bytes.find("\"brrr_version\"") != std::string_view::npos)
    return FileKind{"a .brrr file", "`brrr run FILE.brrr` runs it", true, true};
  if (begins_as_onnx(bytes))
    return FileKind{"an ONNX file", "`brrr run FILE.onnx` runs it", true, true};
  if (is_safetensors(bytes))
    return FileKind{"a safetensors file", "name the folder that holds it beside config.json", true};
  // SentencePiece: the first of its pieces is <unk> or <pad>.
  if (bytes[0] == '\x0a' && bytes.substr(0, 32).find("<") != std::string_view::npos &&
      (bytes.substr(0, 32).find("<unk>") != std::string_view::npos ||
       bytes.substr(0, 32).find("<pad>") != std::string_view::npos))
    return FileKind{"a SentencePiece tokenizer and no model", "name the folder that holds it"};
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return text_kind("a text");
  const std::string_view text = bytes.substr(first);
  if (!is_text(bytes)) return std::nullopt;
  if (begins_with_html(text))
    return text_kind("a web page (HTML)", "perhaps it came in place of a download");
  if (text.starts_with("<?xml") || text.starts_with("<net"))
    return text.find("<net") == std::string_view::npos
               ? text_kind("an XML file")
               : FileKind{"a model of OpenVINO, which is not read", "take its ONNX file", true};
  if (text[0] == '{' || text[0] == '[') return kind_of_json(text);
  return text_kind("a text");
}

std::optional<FileKind> kind_of_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  std::string bytes(kBeginning, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.bad() || (!file && !file.eof())) return std::nullopt;
  bytes.resize(static_cast<size_t>(file.gcount()));
  return kind_of_bytes(bytes);
}

void refuse_file(const std::string& name, const std::string& expected) {
  const std::optional<FileKind> kind = kind_of_file(name);
  if (!kind) user_error("{} is a file; expected {}", name, expected);
  if (!kind->advice.empty()) user_error("{} is {}", name, kind->str());
  user_error("{} is {}; expected {}", name, kind->name, expected);
}

}  // namespace brrr::io
