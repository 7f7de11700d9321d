#include "folders/hub/hub.h"

#include "base/cache.h"
#include "base/encoding/ascii.h"
#include "base/env.h"
#include "base/errors.h"
#include "base/tell.h"
#include "folders/hub/hub_download.h"
#include "folders/hub/hub_gguf.h"
#include "folders/weights.h"

namespace brrr::io {
namespace {

/// The variable that forbids downloads; "" where none does.
std::string offline_variable() {
  if (env::get("BRRR_OFFLINE")) return "BRRR_OFFLINE";
  const std::string value = ascii_lowercase(env::get("HF_HUB_OFFLINE").value_or(""));
  for (const char* yes : {"1", "true", "yes", "on"})
    if (value == yes) return "HF_HUB_OFFLINE";
  return "";
}

/// A name such as runs/gpt2-3 means a folder, though there is none of it.
bool means_a_folder(const HubName& name) {
  const std::string owner = name.id.substr(0, name.id.find('/'));
  std::error_code ignored;
  return owner == "runs" || fs::is_directory(owner, ignored);
}

/// The GGUF file that a name means, where the snapshot has it: of a name without a type, where
/// there is no other model. Without the network the only file will do, too.
fs::path gguf_in_cache(const HubName& name, const fs::path& snapshot) {
  if (snapshot.empty() || (name.gguf_type.empty() && holds_model(snapshot))) return {};
  if (!name.gguf_type.empty()) return gguf_in(snapshot, name.gguf_type);
  const fs::path usual = gguf_in(snapshot, kUsualGgufType);
  return usual.empty() && !offline_variable().empty() ? gguf_in(snapshot, "") : usual;
}

}  // namespace

fs::path model_from_hub(const HubName& name) {
  const fs::path snapshot = find_snapshot(name);
  if (const fs::path file = gguf_in_cache(name, snapshot); !file.empty()) return file;
  const bool is_usable = name.gguf_type.empty() && !snapshot.empty() && holds_model(snapshot);
  const std::string missing = snapshot.empty()         ? ""
                              : name.gguf_type.empty() ? missing_in(snapshot)
                                                       : "the GGUF file " + name.gguf_type;
  if (is_usable && missing.empty()) return snapshot;
  const std::string forbidden = offline_variable();
  if (!name.can_be_downloaded() || means_a_folder(name) || !forbidden.empty()) {
    if (is_usable) return snapshot;
    if (!snapshot.empty() && name.gguf_type.empty()) refuse_pickled(snapshot);
    if (!name.can_be_downloaded() || means_a_folder(name)) return {};
    const std::string lack =
        snapshot.empty()
            ? fmt::format("no model of that name in {}", hugging_face_cache().string())
            : fmt::format("what {} has of that model lacks {}", snapshot.string(), missing);
    user_error(
        "there is no folder {}, and {}; {} is set, so nothing was downloaded: unset it, or name a "
        "folder that holds a model",
        name.text(), lack, forbidden);
  }
  try {
    return HubDownload(name).run();
  } catch (const UserError& e) {
    if (!is_usable) throw;
    tell("warning: {} lacks {}: {}\n", snapshot.string(), missing, e.what());
    return snapshot;
  }
}

}  // namespace brrr::io
