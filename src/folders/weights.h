#pragma once
// The weights of a model folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. What is written here loads with transformers' from_pretrained; what that saves loads here.

#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors.h"
#include "models/model.h"

namespace brrr::io {

/// The files that hold all weights, or say which shards do.
constexpr const char* kSingleWeights = "model.safetensors";
constexpr const char* kWeightIndex = "model.safetensors.index.json";

/// The shards that such an index names, files beside it. Throws UserError where it is no index.
std::set<std::string> shards_of_index(const fs::path& index);

/// The command that converts a folder's Python pickles to safetensors.
std::string conversion_command(const std::string& folder);

/// The files with weights of a folder, memory-mapped. Throws UserError for a missing shard, a
/// tensor in two shards, and an index that says something else than the shards.
class WeightFiles final : public WeightSource {
 public:
  explicit WeightFiles(const fs::path& folder);

  const TensorView* find(std::string_view name) const override;
  void each(const std::function<void(const TensorView&)>& see) const override;
  void each_foreign(const std::function<void(const ForeignTensor&)>& see) const override;
  void let_go(std::span<const std::byte> bytes) const override;
  /// The name of the file, or of the index.
  const std::string& what() const override { return what_; }

 private:
  std::string what_;
  std::deque<SafetensorsFile> files_;
  std::map<std::string, const TensorView*, std::less<>> shard_tensors_;  // of several files
};

/// Whether the folder has a config.json and weights, or an adapter, which names its base.
bool holds_model(const fs::path& folder);
/// Whether it is the folder of an adapter (folders/adapters/adapter_folder.h).
bool holds_adapter(const fs::path& folder);

/// Throws UserError, which says how to convert them, for a folder with PyTorch's own weight files
/// and no others.
void refuse_pickled(const fs::path& folder);

/// The tensor of a parameter by its name, by the name without the prefix, or by an older name;
/// nullptr: there is none.
const TensorView* find_parameter(const WeightSource& files, const models::FileNames& names,
                                 const std::string& parameter);

/// Where the head of a model comes from.
enum class TaskHead {
  of_files,
  fresh,  // the caller makes it
};

/// The tensors of the model's parameters by the parameters' names: `files` are kept, and views of
/// them listed. The prefix may be missing in the files; buffers, heads for other tasks and a copy
/// of a tied head are passed over (models::FileNames). Throws UserError for tensors that are
/// missing, have another shape or are not of floats (named, up to ten), and for weights of the
/// trunk that the configuration does not know (a deeper model, say). Where the head is not that of
/// the files, its parameters are left out, and a pooler that the files lack.
std::shared_ptr<const WeightList> match_tensors(std::shared_ptr<const WeightSource> files,
                                                const models::Model& model,
                                                TaskHead head = TaskHead::of_files);
/// match_tensors() for the weight files of a folder, which may be quantised. `base`: where the base
/// of an adapter is, if not where the adapter says.
std::shared_ptr<const WeightList> open_weights(const fs::path& folder, const models::Model& model,
                                               TaskHead head = TaskHead::of_files,
                                               const fs::path& base = {});

/// Whether the files hold, for a head that the configuration ties to the table of embeddings, other
/// weights than that table: such a head is loaded untied, as transformers does.
bool has_other_head(const WeightSource& files, const models::Model& model);

/// Writes model.safetensors and config.json into an existing folder. `tensors` are exactly the
/// model's parameters, in any order; with `content` they need no bytes of their own.
void write_model_files(const fs::path& folder, const models::Model& model,
                       std::span<const TensorView> tensors, const TensorContent& content = {});

}  // namespace brrr::io
