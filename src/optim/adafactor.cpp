// Adafactor (Shazeer and Stern 2018): two vectors of state for each matrix. Relative steps are the
// schedule's (ScheduleKind::relative_step); the constants are the paper's and transformers'.

#include "ops/op.h"
#include "optim/updates.h"

namespace brrr::optim {

namespace {

// Its states are small and need whole gradients: what lies in shards is gathered, every rank
// updates all of it and keeps its part.
void update_in_whole(Update& u, const Group& group) {
  Group whole = group;
  for (Trained& t : whole) {
    const int64_t ranks = ranks_of_shard(t.param);
    const Shape shape = whole_shape(t.param);
    t.shard = t.param;
    t.param = all_gather(t.param, shape, ranks, false);
    t.grad = all_gather(in_f32(t.grad), shape, ranks, false);
  }
  update_by_adafactor(u, whole);
}

}  // namespace

void update_by_adafactor(Update& u, const Group& all) {
  Group group, shards;
  for (const Trained& t : all) (is_shard(t.param) ? shards : group).push_back(t);
  if (!shards.empty()) update_in_whole(u, shards);
  Group matrices, vectors;
  for (const Trained& t : group) (t.param.shape().rank() < 2 ? vectors : matrices).push_back(t);
  const Attrs attrs{{"decay_rate", -0.8},
                    {"eps1", 1e-30},
                    {"eps2", 1e-3},
                    {"clip", 1.0},
                    {"scale_parameter", u.options.scale_parameter}};
  u.append(
      Op::adafactor, matrices,
      [](const Trained& t) {
        const auto dims = t.param.shape().dims();
        std::vector<Dim> rows(dims.begin(), dims.end()), columns = rows;
        rows.pop_back();
        columns.erase(columns.end() - 2);
        return std::vector<Update::State>{{"adafactor_row", {DType::f32, Shape(rows)}},
                                          {"adafactor_col", {DType::f32, Shape(columns)}}};
      },
      attrs);
  u.append(
      Op::adafactor_vector, vectors,
      [](const Trained& t) {
        return std::vector<Update::State>{{"adafactor_v", {DType::f32, t.param.shape()}}};
      },
      attrs);
}

}  // namespace brrr::optim
