#include "formats/pickle/torch_file.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "formats/pickle/pickle_machine.h"

namespace brrr::io {
namespace {

using namespace std::literals;
using Kind = PickleValue::Kind;

/// The pickle of the magic number that old files begin with.
constexpr std::string_view kLegacyBegin =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
constexpr int kMostDepth = 32;
constexpr int64_t kMostVisits = 4'000'000;

struct StorageType {
  const char* name;
  DType dtype;
};
constexpr StorageType kStorageTypes[] = {
    {"FloatStorage", DType::f32},     {"DoubleStorage", DType::f64}, {"HalfStorage", DType::f16},
    {"BFloat16Storage", DType::bf16}, {"LongStorage", DType::i64},   {"IntStorage", DType::i32},
    {"ShortStorage", DType::i16},     {"CharStorage", DType::i8},    {"ByteStorage", DType::u8},
    {"BoolStorage", DType::boolean}};

std::string_view storage_type(const PickleValue& storage) {
  const std::string_view name = storage.items[0]->text;
  return name.substr(name.rfind('.') + 1);
}

std::optional<DType> dtype_of_storage(std::string_view name) {
  for (const StorageType& type : kStorageTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

/// The dict of a checkpoint in which the weights are, or the root itself.
const PickleValue& weights_of(const PickleValue& root) {
  for (const char* key : {"state_dict", "model_state_dict", "model", "module", "net"})
    if (const PickleValue* inner = root.find(key); inner != nullptr && inner->is(Kind::dict))
      return *inner;
  return root;
}

std::string key_text(const PickleValue& key) {
  return key.is(Kind::integer) ? std::to_string(key.integer) : key.text;
}

/// Calls add(name, tensor) for every tensor in a value, and stops at values that hold themselves.
template <typename Add>
class TensorWalk {
 public:
  TensorWalk(const std::string& what, const Add& add) : what_(what), add_(add) {}
  void visit(const PickleValue& value, const std::string& name, int depth) {
    if (++visits_ > kMostVisits || depth > kMostDepth)
      user_error("{}: its dicts and lists are nested too deeply, or in a circle", what_);
    constexpr size_t kLongestName = 4096;
    if (name.size() > kLongestName) user_error("{}: a tensor's name is too long", what_);
    const auto inner = [&](const std::string& key) {
      return name.empty() ? key : name + "." + key;
    };
    if (value.is(Kind::tensor)) {
      add_(name, value);
    } else if (value.is(Kind::dict)) {
      for (size_t i = 0; i + 1 < value.items.size(); i += 2)
        visit(*value.items[i + 1], inner(key_text(*value.items[i])), depth + 1);
    } else if (value.is(Kind::list) || value.is(Kind::tuple)) {
      for (size_t i = 0; i < value.items.size(); ++i)
        visit(*value.items[i], inner(std::to_string(i)), depth + 1);
    }
  }

 private:
  const std::string& what_;
  const Add& add_;
  int64_t visits_ = 0;
};

bool lies_row_by_row(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] != 1 && strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

/// Copies elements in row-major order; returns behind the last one written.
std::byte* copy_strided(const std::byte* from, std::span<const int64_t> sizes,
                        std::span<const int64_t> strides, size_t element, std::byte* to) {
  if (sizes.empty()) {
    std::memcpy(to, from, element);
    return to + element;
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    to = copy_strided(from + static_cast<size_t>(i * strides[0]) * element, sizes.subspan(1),
                      strides.subspan(1), element, to);
  return to;
}

}  // namespace

TorchFile::TorchFile(const fs::path& path) : what_(path.string()), map_(path) {
  parse(map_.bytes());
}
TorchFile::TorchFile(std::span<const std::byte> bytes, const std::string& what) : what_(what) {
  parse(bytes);
}

bool TorchFile::recognises(std::string_view beginning) {
  return beginning.starts_with(kLegacyBegin) ||
         (beginning.starts_with("PK\x03\x04") &&
          beginning.find("data.pkl") != std::string_view::npos &&
          beginning.find("constants.pkl") == std::string_view::npos);
}

void TorchFile::parse(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kLegacyBegin))
    parse_legacy(bytes);
  else if (text.starts_with("PK"))
    parse_zip(bytes);
  else
    user_error("{} is no file that PyTorch saved", what_);
  if (tensors_.empty() && foreign_.empty()) user_error("{} holds no tensors with names", what_);
  leave_out_prefix("module.");
  leave_out_prefix("_orig_mod.");
  for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

void TorchFile::parse_zip(std::span<const std::byte> bytes) {
  zip_ = std::make_unique<ZipFile>(bytes, what_);
  std::string pickle;
  zip_->each([&](const std::string& name) {
    if (name.ends_with("/constants.pkl"))
      user_error("{} is a TorchScript file, which is not read; save model.state_dict()", what_);
    if (name.ends_with("/data.pkl")) pickle = name;
  });
  if (pickle.empty())
    user_error("{} is a zip archive without data.pkl; expected one of PyTorch", what_);
  folder_ = pickle.substr(0, pickle.size() - "data.pkl"sv.size());
  if (zip_->contains(folder_ + "byteorder")) {
    const auto order = zip_->read(folder_ + "byteorder");
    if (std::string_view(reinterpret_cast<const char*>(order.data()), order.size()) != "little")
      user_error("{} was saved on a machine with the high byte first, which is not read", what_);
  }
  list_tensors(Pickle(zip_->read(pickle), what_).root());
}

/// Pickles of a magic number, a protocol version and a description of the machine; then the root,
/// the keys of the storages, and each storage as its number of elements and its bytes.
void TorchFile::parse_legacy(std::span<const std::byte> bytes) {
  size_t at = kLegacyBegin.size();
  const auto next = [&] {
    auto pickle = std::make_unique<Pickle>(bytes.subspan(at), what_);
    at += pickle->bytes_read();
    return pickle;
  };
  const auto version = next();
  constexpr int64_t kLegacyVersion = 1001;
  if (!version->root().is(Kind::integer) || version->root().integer != kLegacyVersion)
    user_error("{}: its protocol version is unknown; expected {}", what_, kLegacyVersion);
  const auto machine = next();
  if (const PickleValue* order = machine->root().find("little_endian");
      order != nullptr && order->integer == 0)
    user_error("{} was saved on a machine with the high byte first, which is not read", what_);
  const auto root = next();
  const auto keys = next();
  // How many bytes an element of a storage has, only the tensors tell.
  std::unordered_map<std::string, size_t> element_bytes;
  const auto note = [&](const std::string&, const PickleValue& tensor) {
    const PickleValue& storage = *tensor.items[0];
    const auto dtype = dtype_of_storage(storage_type(storage));
    if (!dtype)
      user_error("{}: holds tensors of {}, which is not read from old files", what_,
                 storage_type(storage));
    element_bytes[storage.text] = bytes_of(*dtype);
  };
  TensorWalk(what_, note).visit(root->root(), "", 0);
  for (const PickleValue* key : keys->root().items) {
    const auto found = element_bytes.find(key->text);
    // A storage that no tensor shows: its size cannot be told, nor where the next one begins.
    if (found == element_bytes.end())
      user_error("{}: its storage '{}' belongs to no tensor; save it in a newer version of PyTorch",
                 what_, key->text);
    uint64_t elements = 0;
    const bool has_size = bytes.size() - at >= sizeof elements;
    if (has_size) std::memcpy(&elements, bytes.data() + at, sizeof elements);
    at += has_size ? sizeof elements : 0;
    if (!has_size || elements > (bytes.size() - at) / found->second)
      user_error("{}: truncated: the storage '{}' ends beyond the file; copy or download it again",
                 what_, key->text);
    storages_[key->text] = bytes.subspan(at, elements * found->second);
    at += elements * found->second;
  }
  list_tensors(root->root());
}

void TorchFile::list_tensors(const PickleValue& root) {
  const auto add = [&](const std::string& name, const PickleValue& tensor) {
    if (!name.empty()) this->add(name, tensor);
  };
  TensorWalk(what_, add).visit(weights_of(root), "", 0);
}

std::span<const std::byte> TorchFile::bytes_of_storage(const PickleValue& storage,
                                                       size_t element_bytes,
                                                       const std::string& tensor) {
  std::span<const std::byte> bytes;
  if (zip_) {
    bytes = zip_->read(folder_ + "data/" + storage.text);
  } else {
    const auto found = storages_.find(storage.text);
    if (found == storages_.end())
      user_error("{}: tensor '{}': its storage '{}' is missing", what_, tensor, storage.text);
    bytes = found->second;
  }
  const auto elements = static_cast<uint64_t>(storage.elements);
  if (elements > bytes.size() / element_bytes)
    user_error("{}: truncated: tensor '{}' needs a storage of {} elements, the file has {} bytes",
               what_, tensor, elements, bytes.size());
  return bytes.first(elements * element_bytes);
}

void TorchFile::add(std::string name, const PickleValue& tensor) {
  if (!names_.emplace(name, true).second)
    user_error("{}: two tensors have the name '{}'", what_, name);
  const PickleValue& storage = *tensor.items[0];
  constexpr int64_t kMostElements = int64_t{1} << 48;
  int64_t elements = 1, last = tensor.integer;
  bool is_odd = tensor.integer < 0;
  for (size_t i = 0; i < tensor.sizes.size() && !is_odd; ++i) {
    const int64_t size = tensor.sizes[i], stride = tensor.strides[i];
    is_odd = size < 0 || stride < 0 || size > kMostElements || stride > kMostElements ||
             __builtin_mul_overflow(elements, size, &elements) || elements > kMostElements;
    int64_t reach = 0;
    is_odd = is_odd || __builtin_mul_overflow(std::max<int64_t>(0, size - 1), stride, &reach) ||
             __builtin_add_overflow(last, reach, &last);
  }
  // Elements may be repeated (a stride of 0), but not so that a small file takes any memory.
  is_odd = is_odd || (elements > 0 && (last >= storage.elements || elements > storage.elements));
  if (is_odd)
    user_error("{}: tensor '{}' of sizes [{}] and strides [{}] does not fit its storage of {}",
               what_, name, fmt::join(tensor.sizes, ", "), fmt::join(tensor.strides, ", "),
               storage.elements);
  const auto dtype = dtype_of_storage(storage_type(storage));
  if (!dtype) {
    foreign_.push_back(
        {std::move(name), std::string(storage_type(storage)), Shape(tensor.sizes), {}});
    return;
  }
  const size_t element = bytes_of(*dtype);
  const auto bytes = bytes_of_storage(storage, element, name);
  std::span<const std::byte> from;
  if (elements > 0) from = bytes.subspan(static_cast<size_t>(tensor.integer) * element);
  TensorView view{name, *dtype, Shape(tensor.sizes), {}};
  if (lies_row_by_row(tensor.sizes, tensor.strides))
    view.bytes = from.first(static_cast<size_t>(elements) * element);
  else
    strided_[name] = {tensor.strides, from};
  tensors_.push_back(std::move(view));
}

void TorchFile::leave_out_prefix(std::string_view prefix) {
  const auto has_prefix = [&](const auto& tensor) {
    return tensor.name.starts_with(prefix) && tensor.name.size() > prefix.size();
  };
  if (!std::ranges::all_of(tensors_, has_prefix) || !std::ranges::all_of(foreign_, has_prefix))
    return;
  std::unordered_map<std::string, Strided> strided;
  for (auto& [name, place] : strided_) strided[name.substr(prefix.size())] = std::move(place);
  strided_ = std::move(strided);
  for (TensorView& tensor : tensors_) tensor.name.erase(0, prefix.size());
  for (ForeignTensor& tensor : foreign_) tensor.name.erase(0, prefix.size());
}

const TensorView* TorchFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found != index_.end()) return &tensors_[found->second];
  for (const ForeignTensor& tensor : foreign_)
    if (tensor.name == name)
      user_error("{}: tensor '{}' has the type {}, which is not supported", what_, name,
                 tensor.dtype);
  return nullptr;
}

void TorchFile::each(const std::function<void(const TensorView&)>& see) const {
  for (const TensorView& tensor : tensors_) see(tensor);
}
void TorchFile::each_foreign(const std::function<void(const ForeignTensor&)>& see) const {
  for (const ForeignTensor& tensor : foreign_) see(tensor);
}

void TorchFile::read(const TensorView& tensor, std::span<std::byte> to) const {
  const auto found = strided_.find(tensor.name);
  const size_t element = bytes_of(tensor.dtype);
  BRRR_CHECK(to.size() == static_cast<size_t>(tensor.shape.elements()) * element, "{} bytes",
             to.size());
  if (found == strided_.end()) {
    if (!to.empty()) std::memcpy(to.data(), tensor.bytes.data(), to.size());
    return;
  }
  if (to.empty()) return;
  const Strided& place = found->second;
  copy_strided(place.from.data(), tensor.shape.sizes(), place.strides, element, to.data());
}

void TorchFile::let_go(std::span<const std::byte> bytes) const {
  const auto all = map_.bytes();
  const bool is_ours = !bytes.empty() && bytes.data() >= all.data() &&
                       bytes.data() + bytes.size() <= all.data() + all.size();
  if (is_ours) map_.let_go(bytes);
}

}  // namespace brrr::io
