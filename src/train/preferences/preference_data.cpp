#include "train/preferences/preference_data.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"
#include "base/threads/parallel_tasks.h"
#include "data/hold_out.h"
#include "train/chat/chat_data.h"
#include "train/chat/encode_conversation.h"
#include "train/preferences/preference_file.h"

namespace brrr::train {
namespace {

struct EncodedPair {
  EncodedConversation chosen, rejected;
  bool is_cut = false, is_left_out = false;
};

/// Ids of pairs one behind the other.
struct EncodedPairs {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learnt;
  std::vector<io::PreferencePair> pairs;
  int64_t cut = 0, left_out = 0;

  io::Document add(const EncodedConversation& sequence) {
    const int64_t begin = std::ssize(ids);
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    learnt.insert(learnt.end(), sequence.learnt.begin(), sequence.learnt.end());
    return {begin, std::ssize(ids)};
  }
};

/// Where a sequence is longer than the context: leaves its beginning.
bool cut(EncodedConversation& sequence, size_t longest) {
  if (sequence.ids.size() <= longest) return false;
  sequence.ids.resize(longest);
  sequence.learnt.resize(longest);
  return true;
}

EncodedPair encode_pair(const Preference& preference, const ConversationEncoder& encoder,
                        const TrainOptions& options) {
  EncodedPair pair{encoder.encode_undivided(preference.chosen),
                   encoder.encode_undivided(preference.rejected)};
  if (pair.chosen.ids == pair.rejected.ids)
    user_error("\"chosen\" and \"rejected\" are the same tokens, so neither is preferred");
  const auto longest = static_cast<size_t>(options.context) + 1;  // the last id is a target only
  for (EncodedConversation* sequence : {&pair.chosen, &pair.rejected}) {
    const size_t tokens = sequence->ids.size();
    if (!cut(*sequence, longest)) continue;
    pair.is_cut = true;
    if (!options.truncate)
      user_error("the {} answer and its prompt have {} tokens, more than the context of {}",
                 sequence == &pair.chosen ? "chosen" : "rejected", tokens, options.context);
  }
  pair.is_left_out =
      !learns(pair.chosen) || !learns(pair.rejected) || pair.chosen.ids == pair.rejected.ids;
  return pair;
}

EncodedPairs encode(const std::vector<Preference>& preferences, const std::string& name,
                    const ConversationEncoder& encoder, const TrainOptions& options) {
  std::vector<EncodedPair> encoded(preferences.size());
  parallel_tasks(std::ssize(preferences), [&](size_t i) {
    try {
      encoded[i] = encode_pair(preferences[i], encoder, options);
    } catch (const UserError& e) {
      throw UserError(fmt::format("{}: line {}: {}", name, preferences[i].line(), e.what()),
                      e.code());
    }
  });
  EncodedPairs file;
  for (const EncodedPair& pair : encoded) {
    file.left_out += pair.is_left_out ? 1 : 0;
    if (pair.is_left_out) continue;
    file.cut += pair.is_cut ? 1 : 0;
    const io::Document chosen = file.add(pair.chosen);
    file.pairs.push_back({chosen, file.add(pair.rejected)});
  }
  return file;
}

void note_cut(const EncodedPairs& file, const TrainOptions& options, Dataset& d) {
  const std::string context = counted(options.context, "token");
  if (file.cut > 0)
    d.notes.push_back(fmt::format(
        "{} longer than the context of {} lost the end of an answer; a larger --context keeps "
        "them whole",
        counted(file.cut, "pair"), context));
  if (file.left_out > 0)
    d.notes.push_back(
        fmt::format("{} left out: within the context of {} the answers do not differ; use a larger "
                    "--context",
                    counted(file.left_out, "pair"), context));
}

}  // namespace

Dataset preference_dataset(const TrainOptions& options, const std::string& model_folder) {
  Dataset d;
  d.tokenizer = io::load_tokenizer(model_folder);
  PreferenceFile file = read_preferences(options.data[0]);
  const std::string name = file.name;
  const bool with_tools = std::ranges::any_of(
      file.preferences, [](const Preference& p) { return p.chosen.tools.truth(); });
  const io::ChatTemplate chat = chat_template_of(options, model_folder, with_tools);
  const ConversationEncoder encoder(chat, *d.tokenizer, options.context + 1);
  io::HeldOutRows::Split<Preference> split;
  std::string val_name = name;
  if (!options.val_data.empty()) {
    split.train = std::move(file.preferences);
    PreferenceFile val = read_preferences(options.val_data[0]);
    val_name = val.name;
    split.validation = std::move(val.preferences);
  } else {
    split = io::HeldOutRows(options.val_fraction).split(std::move(file.preferences));
  }
  EncodedPairs train = encode(split.train, name, encoder, options),
               val = encode(split.validation, val_name, encoder, options);
  if (train.pairs.empty())
    user_error(
        "{}: no pair has answers that differ within the context of {}; use a larger --context",
        name, counted(options.context, "token"));
  note_cut(train, options, d);
  note_cut(val, options, d);
  d.has_val = !val.pairs.empty();
  if (!d.has_val && val.left_out == 0)
    d.notes.push_back(
        fmt::format("no validation: {} has only {}; name a second file with --val-data", name,
                    counted(std::ssize(split.train), "pair")));
  d.description =
      fmt::format("{}: {} for training and {} for validation; {} tokens, {} of them the answers'",
                  name, counted(std::ssize(train.pairs), "pair"), val.pairs.size(),
                  with_commas(std::ssize(train.ids)),
                  with_commas(std::ranges::count(train.learnt, uint8_t{1})));
  const Preference& shown =
      split.validation.empty() ? split.train.front() : split.validation.front();
  d.sample_prompt = encoder.question_of(shown.chosen);
  d.train = io::TokenSource::from_ids(std::move(train.ids), name);
  d.val = io::TokenSource::from_ids(std::move(val.ids), val_name);
  d.learnt = std::move(train.learnt);
  d.val_learnt = std::move(val.learnt);
  d.pairs = std::move(train.pairs);
  d.val_pairs = std::move(val.pairs);
  return d;
}

}  // namespace brrr::train
