#pragma once
// What files for other runtimes call the inputs and outputs of a transformer (Model::exchange).

namespace brrr::models::exchange_names {

inline constexpr const char* kIds = "input_ids";
inline constexpr const char* kMask = "attention_mask";
inline constexpr const char* kPositions = "position_ids";
inline constexpr const char* kTypes = "token_type_ids";
inline constexpr const char* kPast = "past_key_values";  // followed by ".<layer>.key" or ".value"
inline constexpr const char* kPresent = "present";       // followed by the same
inline constexpr const char* kPixels = "pixel_values";   // f32 [B, channels, H, W]
inline constexpr const char* kLastHidden = "last_hidden_state";

}  // namespace brrr::models::exchange_names
