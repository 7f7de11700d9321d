#pragma once
// Weights that PyTorch saved (.pth, .pt, .bin): a zip archive with a pickle, or the format before
// PyTorch 1.6. Nothing of the pickle is run (pickle_machine.h). Tensors are memory-mapped; those
// that do not lie row by row are put in order when they are read.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/weight_source.h"
#include "formats/pickle/zip_file.h"

namespace brrr::io {

struct PickleValue;

/// Tensors have the names of their keys, joined by dots. Of a checkpoint
/// {"state_dict" | "model_state_dict" | "model" | "module" | "net": {...}} the tensors in there are
/// listed alone. The prefixes "module." and "_orig_mod." of DataParallel and torch.compile are left
/// out where all names have them. Views stay valid as long as the file object, which does not move.
class TorchFile final : public WeightSource {
 public:
  /// Throws UserError: no such file, damaged, a pickle that calls anything, a tensor outside its
  /// storage.
  explicit TorchFile(const fs::path& path);
  /// Over bytes that outlive the object; `what` stands for the path in errors.
  TorchFile(std::span<const std::byte> bytes, const std::string& what);
  TorchFile(const TorchFile&) = delete;
  TorchFile& operator=(const TorchFile&) = delete;

  /// Whether a file that begins so (4096 bytes are enough) is one of PyTorch.
  static bool recognises(std::string_view beginning);

  const std::string& what() const override { return what_; }
  const TensorView* find(std::string_view name) const override;
  /// In the order of the file.
  void each(const std::function<void(const TensorView&)>& see) const override;
  void each_foreign(const std::function<void(const ForeignTensor&)>& see) const override;
  void read(const TensorView& tensor, std::span<std::byte> to) const override;
  void let_go(std::span<const std::byte> bytes) const override;

 private:
  struct Strided {
    std::vector<int64_t> strides;
    std::span<const std::byte> from;  // the first element and what follows
  };
  using Storages = std::unordered_map<std::string, std::span<const std::byte>>;

  void parse(std::span<const std::byte> bytes);
  void parse_zip(std::span<const std::byte> bytes);
  void parse_legacy(std::span<const std::byte> bytes);
  void list_tensors(const PickleValue& root);
  void add(std::string name, const PickleValue& tensor);
  std::span<const std::byte> bytes_of_storage(const PickleValue& storage, size_t element_bytes,
                                              const std::string& tensor);
  void leave_out_prefix(std::string_view prefix);

  std::string what_;
  MappedFile map_;
  std::unique_ptr<ZipFile> zip_;
  std::string folder_;  // of the zip, with its slash
  Storages storages_;   // of the old format, by key
  std::vector<TensorView> tensors_;
  std::vector<ForeignTensor> foreign_;
  std::unordered_map<std::string, size_t> index_;     // into tensors_
  std::unordered_map<std::string, Strided> strided_;  // tensors that are put in order
  std::unordered_map<std::string, bool> names_;
};

}  // namespace brrr::io
