// Other runtimes of `brrr bench inference`: a Python process for each, which runs peers.py.

#include <unistd.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "insight/bench/inference_runtimes.h"
#include "insight/bench/peer_process.h"

namespace brrr {

std::span<const std::pair<std::string_view, std::string_view>> embedded_insight_bench();

}  // namespace brrr

namespace brrr::insight {
namespace {

using Json = nlohmann::json;

constexpr const char* kSentenceTransformers = "sentence-transformers";

struct PeerKind {
  const char* runtime;
  const char* package;  // that its version is told of
  std::vector<const char*> needs;
  std::vector<Precision> precisions;
  bool takes_onnx = false;
  std::vector<Precision> quick = {};  // precisions that are timed with PeersSetup::quick
};

const std::vector<PeerKind>& peer_kinds() {
  static const std::vector<PeerKind> kinds = {
      {"onnxruntime", "onnxruntime", {"onnxruntime"}, {Precision::fp32}, true, {Precision::fp32}},
      {"openvino",
       "openvino",
       {"openvino"},
       {Precision::fp32, Precision::bfloat16},
       true,
       {Precision::fp32, Precision::bfloat16}},
      {"pytorch",
       "torch",
       {"torch", "transformers"},
       {Precision::fp32, Precision::bfloat16},
       false,
       {Precision::fp32}},
      {"torchscript", "torch", {"torch", "transformers"}, {Precision::fp32}},
      {"torch.compile", "torch", {"torch", "transformers"}, {Precision::fp32}},
      {kSentenceTransformers, kSentenceTransformers, {kSentenceTransformers}, {Precision::fp32}}};
  return kinds;
}
const std::vector<const char*> kExportNeeds = {"torch", "transformers", "onnx"};

std::string_view peers_script() {
  for (const auto& [name, text] : embedded_insight_bench())
    if (name == "peers.py") return text;
  BRRR_CHECK(false, "peers.py is not in this build");
  return "";
}

class PeerRuntime final : public InferenceRuntime {
 public:
  PeerRuntime(std::string name, Precision precision, PeerOptions options, const Json& question)
      : name_(std::move(name)), precision_(precision), process_(std::move(options)) {
    process_.ask(question);
    process_.pause();
  }

  std::string name() const override { return name_; }
  Precision precision() const override { return precision_; }
  bool runs(const TextBatches& work) const override {
    if (work.order == TextOrder::packed) return false;
    // encode() takes texts and sorts them itself.
    if (name_ == kSentenceTransformers)
      return work.order == TextOrder::sorted && work.texts->length == 0;
    return true;
  }
  int64_t computed_tokens(const TextBatches& work) const override {
    return work.padded_tokens([](int64_t longest) { return longest; });
  }
  double run(const TextBatches& work, std::span<const size_t> wanted, Vectors& vectors) override {
    const Json answer =
        process_.ask({{"do", "run"},
                      {"set", work.texts->name},
                      {"rows", work.batches},
                      {"vectors", std::vector<size_t>(wanted.begin(), wanted.end())}});
    try {
      vectors = answer.at("vectors").get<Vectors>();
      const double ms = answer.at("ms").get<double>();
      if (!(ms > 0) || vectors.size() != wanted.size()) throw PeerError("");
      return ms;
    } catch (const std::exception&) {
      throw PeerError("its answer lacks the milliseconds or the vectors that were asked for");
    }
  }
  void pause() override { process_.pause(); }

 private:
  std::string name_;
  Precision precision_;
  PeerProcess process_;
};

class PeerOpener {
 public:
  PeerOpener(const BenchEncoder& model, const PeersSetup& setup) : model_(model), setup_(setup) {
    write_cache_file(setup.folder / "peers.py", peers_script());
  }

  void write_texts(const std::vector<const TextSet*>& sets) const {
    Json all = Json::object();
    for (const TextSet* set : sets) {
      Json ids = Json::array();
      for (const io::ModelInput& input : set->inputs) ids.push_back(input.ids);
      all[set->name] = {{"ids", std::move(ids)}, {"texts", set->lines}};
    }
    write_cache_file(setup_.folder / "texts.json",
                     all.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  /// The versions of the packages that the environment has. Throws PeerError.
  std::map<std::string, std::string> packages() const {
    const Json answer = PeerProcess(options("packages")).ask({{"do", "packages"}});
    std::map<std::string, std::string> found;
    const auto list = answer.find("packages");
    if (list == answer.end() || !list->is_object())
      throw PeerError("its answer lacks the list of packages");
    for (const auto& [name, version] : list->items())
      if (version.is_string()) found[name] = version.get<std::string>();
    return found;
  }

  /// Throws PeerError.
  void export_onnx() const {
    PeerProcess(options("export")).ask(question("export", "", Precision::fp32));
  }

  std::unique_ptr<InferenceRuntime> open(const PeerKind& kind, Precision precision) const {
    return std::make_unique<PeerRuntime>(kind.runtime, precision,
                                         options(fmt::format("{}-{}", kind.runtime, precision)),
                                         question("open", kind.runtime, precision));
  }

 private:
  PeerOptions options(const std::string& name) const {
    const std::string threads = std::to_string(setup_.threads);
    return {.arguments = {(setup_.environment / "bin" / "python").string(),
                          (setup_.folder / "peers.py").string()},
            // glibc returns memory to the system after every batch unless told otherwise.
            .environment = {"OMP_NUM_THREADS=" + threads, "MKL_NUM_THREADS=" + threads,
                            "RAYON_NUM_THREADS=" + threads, "HF_HUB_OFFLINE=1",
                            "TRANSFORMERS_OFFLINE=1", "PYTHONWARNINGS=ignore",
                            "MALLOC_TRIM_THRESHOLD_=-1", "MALLOC_MMAP_THRESHOLD_=1073741824",
                            "MALLOC_TOP_PAD_=268435456"},
            .messages = setup_.folder / (name + ".log"),
            .timeout_seconds = setup_.timeout_seconds,
            .stop = setup_.stop};
  }

  Json question(const char* what, const std::string& runtime, Precision precision) const {
    const bool is_whole = runtime == kSentenceTransformers;
    return {{"do", what},
            {"runtime", runtime},
            {"precision", name_of(precision)},
            {"model", (is_whole ? model_.root : model_.folder).string()},
            {"file", (setup_.folder / "encoder.onnx").string()},
            {"texts", (setup_.folder / "texts.json").string()},
            {"threads", setup_.threads},
            {"pooling", model_.pools_first_token() ? "cls" : "mean"},
            {"types", model_.definition->has_token_types()},
            {"vocabulary", model_.definition->sizes().vocabulary},
            {"pad", std::max(0, model_.tokenizer->pad_token())},
            {"longest", model_.longest}};
  }

  const BenchEncoder& model_;
  const PeersSetup& setup_;
};

std::string missing_of(const std::vector<const char*>& needs,
                       const std::map<std::string, std::string>& packages) {
  std::string missing;
  for (const char* name : needs)
    if (!packages.contains(name)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  return missing;
}

bool is_wanted(const PeerKind& kind, Precision precision, const PeersSetup& setup) {
  return holds(setup.precisions, precision) && (!setup.quick || holds(kind.quick, precision));
}

}  // namespace

void check_peers(const fs::path& environment) {
  const fs::path python = environment / "bin" / "python";
  if (::access(python.c_str(), X_OK) == 0) return;
  user_error(
      "--peers {0}: expected a Python virtual environment; there is no program {1}; to create one: "
      "python3 -m venv {0} && {0}/bin/pip install torch transformers onnx onnxruntime openvino "
      "sentence-transformers",
      environment.string(), python.string());
}

Peers open_peers(const BenchEncoder& model, const std::vector<const TextSet*>& texts,
                 const PeersSetup& setup) {
  Peers peers;
  const PeerOpener opener(model, setup);
  std::map<std::string, std::string> packages;
  try {
    packages = opener.packages();
  } catch (const PeerError& e) {
    setup.note(
        fmt::format("no peers: {}: {}", (setup.environment / "bin" / "python").string(), e.what()));
    return peers;
  }
  opener.write_texts(texts);
  std::optional<std::string> no_onnx;  // why there is no ONNX file; "": there is one
  for (const PeerKind& kind : peer_kinds()) {
    if (std::ranges::none_of(kind.precisions,
                             [&](Precision p) { return is_wanted(kind, p, setup); }))
      continue;
    std::string reason;
    if (const std::string missing = missing_of(kind.needs, packages); !missing.empty())
      reason = fmt::format("{} lacks {}", setup.environment.string(), missing);
    if (reason.empty() && kind.takes_onnx) {
      if (!no_onnx) {
        const std::string missing = missing_of(kExportNeeds, packages);
        no_onnx = missing.empty() ? ""
                                  : fmt::format("{} lacks {}, which write the ONNX file",
                                                setup.environment.string(), missing);
        if (missing.empty()) {
          try {
            opener.export_onnx();
          } catch (const PeerError& e) {
            no_onnx = fmt::format("the ONNX file could not be written: {}", e.what());
          }
        }
      }
      reason = *no_onnx;
    }
    if (!reason.empty()) {
      setup.note(fmt::format("{} is left out: {}", kind.runtime, reason));
      continue;
    }
    bool is_open = false;
    for (const Precision precision : kind.precisions) {
      if (!is_wanted(kind, precision, setup)) continue;
      try {
        peers.runtimes.push_back(opener.open(kind, precision));
        is_open = true;
      } catch (const PeerError& e) {
        setup.note(fmt::format("{} {} is left out: {}", kind.runtime, precision, e.what()));
      }
    }
    const std::pair<std::string, std::string> version{kind.package, packages[kind.package]};
    if (is_open && !holds(peers.versions, version)) peers.versions.push_back(version);
  }
  return peers;
}

}  // namespace brrr::insight
