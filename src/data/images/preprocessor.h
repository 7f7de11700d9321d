#pragma once
// preprocessor_config.json: how transformers' image processors, and Brrr, make the input of a model
// of a picture.

#include <string>
#include <string_view>

#include "base/file.h"
#include "data/images/augment.h"
#include "models/model.h"

namespace brrr::io {

/// The usual form of pictures for a model that takes them square, of `channels` channels: pictures
/// of 64 pixels and more are cut from ones that are 8/7 as large (256 for 224), smaller ones are
/// whole; normalised by the means and deviations of ImageNet, of grey pictures by their averages.
PictureForm usual_form(int64_t size, int64_t channels);
/// Returns the form for the picture size of a model. A model with the setting "pixel-range" "unit"
/// takes pixels in [-1, 1] and bicubic resizing, as TensorFlow's EfficientNet-Lite does.
PictureForm usual_form(const models::Model& model);

/// The form that the text of a preprocessor_config.json says, for a model that takes `channels`
/// channels; `what` names it in errors. Sizes, crop_pct, crop_size, resample, image_mean and
/// image_std are read, in the spellings of transformers' processors for convolutional nets. A
/// picture of which only a height and a width are said covers them and is cut, where transformers
/// stretches it. Throws UserError for values that no PictureForm can have.
PictureForm form_from_preprocessor(std::string_view text, const std::string& what,
                                   int64_t channels);

/// The text of a preprocessor_config.json that transformers' AutoImageProcessor reads.
std::string preprocessor_of(const PictureForm& form);

/// How the pictures for the model of a folder are made: as its preprocessor_config.json says, else
/// in the usual way for its size. Where the file names another size than config.json does, `model`
/// is replaced by one for that size. Throws UserError.
PictureForm picture_form(const fs::path& folder, models::ModelPtr& model);

}  // namespace brrr::io
