#pragma once
// AdaptedModel: a model with low-rank adapters, which is a Model like any other. Its graphs are
// those of the base with the adapters added (passes/adapters/); the parameters of the base are
// frozen in them, but for those that an adapter has a trained copy of. Who trains,
// generates, plans or exports a Model needs to know nothing of it.

#include <vector>

#include "models/adapters/adapter.h"
#include "passes/adapters/add_adapters.h"

namespace brrr::models {

class AdaptedModel final : public Model {
 public:
  /// Throws UserError for two adapters that save the same parameter, and for two adapters of one
  /// layer of which one has a factor. An adapter that is not the only one has a name.
  /// `forms`: quantised forms of the base's parameters in training.
  AdaptedModel(ModelPtr base, std::vector<Adapter> adapters, BaseForms forms = {});

  const ModelPtr& base() const { return base_; }
  const BaseForms& forms() const { return forms_; }
  const std::vector<Adapter>& adapters() const { return adapters_; }
  /// Names of the parameters that training changes and a folder of the adapter holds.
  const std::set<std::string>& trained() const { return trained_; }
  /// Elements of those.
  int64_t trained_count() const;
  /// Throws UserError where texts cannot choose among the adapters (SequencesBinding): one of them
  /// has a factor or a trained copy of a parameter, which would change the others.
  void check_choosable() const;

  const AdaptedModel* adapted() const override { return this; }
  const Architecture& architecture() const override { return base_->architecture(); }
  ModelSizes sizes() const override { return base_->sizes(); }
  FileNames file_names() const override { return base_->file_names(); }
  TextEnds text_ends() const override { return base_->text_ends(); }
  KeyValues settings() const override { return base_->settings(); }
  std::string config_json(DType stored) const override { return base_->config_json(stored); }
  ModelPtr with_dropout(double p) const override { return over(base_->with_dropout(p)); }
  ModelPtr with_vocabulary(int64_t n) const override { return over(base_->with_vocabulary(n)); }
  ModelPtr with_untied_head() const override { return over(base_->with_untied_head()); }
  double dropout() const override { return base_->dropout(); }
  Task task() const override { return base_->task(); }
  ModelPtr with_task(const Task& task) const override { return over(base_->with_task(task)); }
  bool has_token_types() const override { return base_->has_token_types(); }
  ModelPtr with_image_size(int64_t size) const override {
    return over(base_->with_image_size(size));
  }
  ModelPtr with_picture_loss(const PictureLoss& loss) const override;

  Graph loss(int64_t batch, int64_t length) const override;
  Graph forward(Dim batch, Dim length) const override;
  Graph scored(int64_t batch, int64_t length) const override;
  Graph forward_at(int64_t batch, int64_t length, int64_t places) const override;
  bool has_flat() const override { return base_->has_flat(); }
  Graph flat(const FlatBinding& binding) const override;
  bool has_flat_loss() const override { return base_->has_flat_loss(); }
  Graph flat_loss(const FlatBinding& binding) const override;
  Graph flat_scored(const FlatBinding& binding) const override;
  Graph preference_loss(const FlatBinding& binding, const PreferenceLoss& loss) const override;
  Graph decode(const DecodeBinding& binding) const override;
  Graph decode_sequences(const SequencesBinding& binding) const override;
  Graph exchange(const ExchangeBinding& binding) const override;
  /// Frozen weights have no gradient: 4 FLOPs for each of them, not 6.
  double flops_per_token(int64_t length, bool whole_scores) const override;

 protected:
  void declare(Parameters& p) const override;

 private:
  ModelPtr over(ModelPtr base) const;
  Graph adapted_graph(Graph graph, AdapterUse use) const;
  void freeze_base(Graph& graph) const;

  ModelPtr base_;
  std::vector<Adapter> adapters_;
  std::vector<ProductAdapter> products_;
  std::set<std::string> trained_;
  BaseForms forms_;
};

/// The model without quantised forms, for runs with random weights.
ModelPtr over_floats(ModelPtr model);

}  // namespace brrr::models
