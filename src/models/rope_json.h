#pragma once
// The rotary settings of a config.json, both ways, for every architecture that has such positions.

#include "models/config_table.h"
#include "models/rope.h"

namespace brrr::models {

/// Reads the object that describes the variant: "rope_scaling", or transformers 5's
/// "rope_parameters", which also holds rope_theta and partial_rotary_factor. What the object leaves
/// out keeps the value that `rope` has; without the object nothing changes. `context` is the
/// longest sequence of the model. Throws UserError for a variant that is not supported.
void read_rope(RopeConfig& rope, const ConfigReader& keys, int64_t context);
/// Reads one object of rotary settings. Architectures with several kinds of layers have such an
/// object for each kind inside "rope_parameters".
void read_rope_object(RopeConfig& rope, const ConfigReader& object, int64_t context);

/// Adds the field of the base of the rotary frequencies and its option, rope-theta.
template <typename C>
typename ConfigTable<C>::Field add_theta(ConfigTable<C>& table, const char* key,
                                         RopeConfig C::*rope) {
  return table
      .real(
          key, [rope](C& c) -> double& { return (c.*rope).theta; }, {.low = 1, .low_open = true},
          "above 1")
      .option("rope-theta", "base of the rotary frequencies", {"rope-base", "rope-freq-base"});
}

/// The value of "rope_scaling": null for plain embeddings. Theta and the share of the columns that
/// turn have keys of their own in this spelling, and every architecture has its own names for them.
io::Json written_rope(const RopeConfig& rope);

}  // namespace brrr::models
