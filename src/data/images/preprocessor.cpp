#include "data/images/preprocessor.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "folders/model_folder.h"
#include "formats/json_file.h"

namespace brrr::io {
namespace {

// Pillow's numbers of filters.
constexpr int64_t kNearest = 0, kBilinear = 2, kBicubic = 3;
// Up to this size transformers' processor for ConvNets cuts the middle out; larger pictures are
// whole.
constexpr int64_t kLeastWhole = 384;

class Preprocessor {
 public:
  Preprocessor(std::string_view text, const std::string& what)
      : what_(what), root_(parse_json(text, what)) {
    if (!root_.is_object())
      user_error("{}: expected a JSON object, found {}", what, describe(root_));
  }

  PictureForm form(int64_t channels) const {
    PictureForm form;
    form.channels = channels;
    read_sizes(form);
    form.filter = filter();
    read_normalisation(form);
    const double scale = number(root_, "rescale_factor", 1.0 / 255);
    if (!flag("do_rescale", true) || std::abs(scale * 255 - 1) > 1e-6)
      user_error("{}: rescale_factor must be 1 / 255; found {}", what_, scale);
    try {
      check_form(form);
    } catch (const UserError& e) {
      user_error("{}: {}", what_, e.what());
    }
    return form;
  }

 private:
  const Json* find(const char* key) const {
    const auto at = root_.find(key);
    return at == root_.end() || at->is_null() ? nullptr : &*at;
  }
  bool flag(const char* key, bool otherwise) const {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_boolean())
      user_error("{}: {} must be true or false; found {}", what_, key, describe(*value));
    return value == nullptr ? otherwise : value->get<bool>();
  }
  double number(const Json& object, const char* key, double otherwise) const {
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return otherwise;
    if (!at->is_number())
      user_error("{}: {} must be a number; found {}", what_, key, describe(*at));
    return at->get<double>();
  }
  int64_t pixels(const char* key, const Json& value) const {
    constexpr int64_t kMost = 16384;
    const bool is_whole = value.is_number_integer();
    if (!is_whole || value.get<int64_t>() < 1 || value.get<int64_t>() > kMost)
      user_error("{}: {} must be a number of pixels from 1 to {}; found {}", what_, key, kMost,
                 describe(value));
    return value.get<int64_t>();
  }

  struct Size {
    int64_t height = 0, width = 0;
    bool is_shorter_side = false;
  };
  /// 224, {"shortest_edge": 224} or {"height": 224, "width": 224}.
  Size size_of(const char* key, const Json& value) const {
    if (value.is_number_integer()) {
      const int64_t side = pixels(key, value);
      return {side, side, true};
    }
    if (value.is_object() && value.contains("shortest_edge")) {
      const int64_t side = pixels("shortest_edge", value["shortest_edge"]);
      return {side, side, true};
    }
    if (value.is_object() && value.contains("height") && value.contains("width"))
      return {pixels("height", value["height"]), pixels("width", value["width"]), false};
    user_error("{}: {} must be a number of pixels, shortest_edge, or height and width; found {}",
               what_, key, describe(value));
  }

  void read_sizes(PictureForm& form) const {
    const Json* const size = find("size");
    const Json* const crop = find("crop_size");
    if (size == nullptr && crop == nullptr)
      user_error("{}: it says no size; expected \"size\" or \"crop_size\"", what_);
    const bool crops = crop != nullptr && flag("do_center_crop", true);
    const Size taken = size_of(crops ? "crop_size" : "size", crops ? *crop : *size);
    form.height = taken.height;
    form.width = taken.width;
    if (!crops && taken.is_shorter_side && find("crop_pct") != nullptr &&
        taken.height < kLeastWhole) {
      const double share = number(root_, "crop_pct", 1);
      if (!(share > 0 && share <= 1))
        user_error("{}: crop_pct must be above 0 and at most 1; found {}", what_, share);
      form.shorter_side = static_cast<int64_t>(static_cast<double>(taken.height) / share);
    } else if (crops && size != nullptr && flag("do_resize", true)) {
      const Size resized = size_of("size", *size);
      form.shorter_side = std::min(resized.height, resized.width);
    }
    if (form.shorter_side == std::min(form.height, form.width)) form.shorter_side = 0;
  }

  ResizeFilter filter() const {
    const Json* const value = find("resample");
    if (value == nullptr) return ResizeFilter::bilinear;
    if (value->is_number_integer()) switch (value->get<int64_t>()) {
        case kNearest:
          return ResizeFilter::nearest;
        case kBilinear:
          return ResizeFilter::bilinear;
        case kBicubic:
          return ResizeFilter::bicubic;
        default:
          break;
      }
    user_error("{}: resample must be {} (nearest), {} (bilinear) or {} (bicubic); found {}", what_,
               kNearest, kBilinear, kBicubic, describe(*value));
  }

  std::vector<float> numbers(const char* key, const std::vector<float>& otherwise) const {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    std::vector<float> list;
    if (value->is_number()) list.push_back(value->get<float>());
    if (value->is_array())
      for (const Json& item : *value) {
        if (!item.is_number()) break;
        list.push_back(item.get<float>());
      }
    if (list.empty() || (value->is_array() && list.size() != value->size()))
      user_error("{}: {} must be numbers; found {}", what_, key, describe(*value));
    return list;
  }

  void read_normalisation(PictureForm& form) const {
    if (!flag("do_normalize", true)) {
      form.mean = {0};
      form.std = {1};
      return;
    }
    const PictureForm usual = usual_form(form.height, form.channels);
    form.mean = numbers("image_mean", usual.mean);
    form.std = numbers("image_std", usual.std);
    // A grey picture has the average of what colours have.
    for (std::vector<float>* list : {&form.mean, &form.std})
      if (form.channels == 1 && list->size() == 3)
        *list = {((*list)[0] + (*list)[1] + (*list)[2]) / 3};
  }

  const std::string& what_;
  Json root_;
};

}  // namespace

PictureForm usual_form(int64_t size, int64_t channels) {
  constexpr int64_t kLeastCropped = 64;
  PictureForm form;
  form.height = form.width = size;
  form.channels = channels;
  if (size >= kLeastCropped) form.shorter_side = (size * 8 + 3) / 7;
  if (channels == 1) {
    form.mean = {0.449f};
    form.std = {0.226f};
  }
  return form;
}

PictureForm usual_form(const models::Model& model) {
  const models::PictureSizes picture = *model.sizes().picture;
  PictureForm form = usual_form(picture.height, picture.channels);
  const KeyValues settings = model.settings();
  if (std::ranges::find(settings, std::pair<std::string, std::string>("pixel-range", "unit")) !=
      settings.end()) {
    form.mean.assign(form.mean.size(), 0.5f);
    form.std = form.mean;
    form.filter = ResizeFilter::bicubic;
  }
  return form;
}

PictureForm form_from_preprocessor(std::string_view text, const std::string& what,
                                   int64_t channels) {
  return Preprocessor(text, what).form(channels);
}

std::string preprocessor_of(const PictureForm& form) {
  const int64_t resample = form.filter == ResizeFilter::nearest    ? kNearest
                           : form.filter == ResizeFilter::bilinear ? kBilinear
                                                                   : kBicubic;
  const auto of_colours = [&](const std::vector<float>& list) {
    Json numbers = Json::array();
    const size_t count = form.channels == 3 ? 3 : 1;
    for (size_t i = 0; i < count; ++i) {
      // The shortest decimals: 0.485, not 0.48500001430511475.
      const float value = list[list.size() == 1 ? 0 : i];
      numbers.push_back(std::stod(fmt::format("{}", value)));
    }
    return numbers;
  };
  const int64_t shorter =
      form.shorter_side > 0 ? form.shorter_side : std::max(form.height, form.width);
  const Json json = {{"image_processor_type", "BitImageProcessor"},
                     {"do_resize", true},
                     {"size", {{"shortest_edge", shorter}}},
                     {"resample", resample},
                     {"do_center_crop", true},
                     {"crop_size", {{"height", form.height}, {"width", form.width}}},
                     {"do_rescale", true},
                     {"rescale_factor", 1.0 / 255},
                     {"do_normalize", true},
                     {"image_mean", of_colours(form.mean)},
                     {"image_std", of_colours(form.std)},
                     {"do_convert_rgb", form.channels == 3}};
  return json.dump(2) + "\n";
}

PictureForm picture_form(const fs::path& folder, models::ModelPtr& model) {
  const models::PictureSizes picture = *model->sizes().picture;
  const fs::path file = folder / kPreprocessorConfig;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return usual_form(*model);
  const PictureForm form = form_from_preprocessor(read_file(file), file.string(), picture.channels);
  if (form.height != form.width)
    user_error("{}: pictures of {} x {}; the model takes square ones", file.string(), form.height,
               form.width);
  if (form.height != picture.height) model = model->with_image_size(form.height);
  return form;
}

}  // namespace brrr::io
