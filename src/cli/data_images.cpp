#include "cli/data_images.h"

#include <nlohmann/json.hpp>

#include "base/human.h"
#include "data/images/image_report.h"
#include "formats/json_file.h"

namespace brrr::cli {
namespace {

struct ImagesArguments {
  bool decode = false;
  int64_t max_pixels = io::kMostPixels;
  bool json = false;
  int64_t threads = 0;
};

const OptionTable<ImagesArguments>& images_table() {
  static const OptionTable<ImagesArguments> table = [] {
    using O = ImagesArguments;
    OptionTable<O> t;
    t.group("options");
    t.flag("decode", &O::decode, "decode each picture, which also finds truncated files");
    t.integer("max-pixels", &O::max_pixels, 1, int64_t{1} << 40, "N",
              "count pictures of more pixels as unreadable");
    t.flag("json", &O::json, "one JSON object on standard output");
    t.integer("threads", &O::threads, 0, 4096, "N", "threads (0: all)", {"num-threads"});
    return t;
  }();
  return table;
}

std::string range_text(const io::ImageReport::Range& range) {
  return range.least == range.most
             ? std::to_string(range.least)
             : fmt::format("{} to {}, median {}", range.least, range.most, range.median);
}

void print_images(const io::ImageSet& set, const io::ImageReport& report) {
  std::vector<std::string> formats;
  for (const auto& [name, count] : report.formats)
    formats.push_back(fmt::format("{} {}", count, name));
  fmt::print("{}: {} of {} classes", set.what(), counted(report.pictures, "picture"),
             set.classes().size());
  if (report.file_bytes > 0)
    fmt::print(", {}", format_bytes(static_cast<double>(report.file_bytes)));
  if (!formats.empty()) fmt::print(" ({})", fmt::join(formats, ", "));
  fmt::print("\n");
  if (!report.formats.empty())
    fmt::print("  width {}; height {}\n", range_text(report.width), range_text(report.height));
  const std::vector<int64_t> counts = set.counts();
  for (size_t c = 0; c < counts.size(); ++c)
    fmt::print("  {:>8} {}\n", counts[c], set.classes()[c]);
  for (const std::string& note : set.notes) fmt::print("  note: {}\n", note);
  for (const std::string& problem : report.bad) fmt::print("  unreadable: {}\n", problem);
}

nlohmann::ordered_json images_json(const io::ImageSet& set, const io::ImageReport& report) {
  const auto range = [](const io::ImageReport::Range& r) {
    return nlohmann::ordered_json{{"min", r.least}, {"median", r.median}, {"max", r.most}};
  };
  nlohmann::ordered_json classes = nlohmann::ordered_json::object();
  const std::vector<int64_t> counts = set.counts();
  for (size_t c = 0; c < counts.size(); ++c) classes[set.classes()[c]] = counts[c];
  return {
      {"data", set.what()},        {"images", report.pictures},    {"bytes", report.file_bytes},
      {"formats", report.formats}, {"width", range(report.width)}, {"height", range(report.height)},
      {"classes", classes},        {"notes", set.notes},           {"unreadable", report.bad}};
}

int run_images(const Arguments& args) {
  ImagesArguments o;
  for (const auto& [key, value] : args.given)
    images_table().set(o, images_table().find(key), value, "--" + canonical_key(key));
  if (args.positional.size() != 1)
    usage_error("expected one folder of pictures, IDX file or list; got {} words",
                args.positional.size());
  use_threads(o.threads);
  const io::ImageData data = io::open_images(args.positional[0]);
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  bool is_good = true;
  for (const io::ImageSet* set : {&data.train, data.validation ? &*data.validation : nullptr}) {
    if (set == nullptr) continue;
    const io::ImageReport report = io::report_images(*set, o.decode, {.most_pixels = o.max_pixels});
    is_good = is_good && report.bad.empty();
    if (o.json)
      all.push_back(images_json(*set, report));
    else
      print_images(*set, report);
  }
  if (o.json) fmt::print("{}\n", io::json_line(nlohmann::ordered_json{{"sets", all}}));
  return static_cast<int>(is_good ? ExitCode::kDone : ExitCode::kFailed);
}

}  // namespace

Command data_images_command() {
  return {.name = "images",
          .summary = "describe pictures with classes: counts, sizes, what cannot be read",
          .synopsis = "FOLDER|IDX_FILE|LIST [--decode] [--json]",
          .notes = "Exit code 1 where a picture cannot be read.\n",
          .options = images_table().infos(),
          .run = run_images,
          .takes_positional = true};
}

}  // namespace brrr::cli
