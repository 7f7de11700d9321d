#include "train/preferences/preference_data.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/human.h"
#include "train/chat/rendered_rows.h"
#include "train/preferences/preference_file.h"

namespace brrr::train {
namespace {

struct EncodedPair {
  EncodedConversation chosen, rejected;
  bool is_cut = false, is_left_out = false;
};

struct EncodedPairs : LearntSequences {
  std::vector<io::PreferencePair> pairs;
  int64_t cut = 0, left_out = 0;
};

/// Truncates a sequence to `longest` ids. Returns true if it was longer.
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

EncodedPairs encode(const RowFile<Preference>& file, const ConversationEncoder& encoder,
                    const TrainOptions& options) {
  EncodedPairs all;
  for (const EncodedPair& pair :
       encode_rows(file, [&](const Preference& p) { return encode_pair(p, encoder, options); })) {
    all.left_out += pair.is_left_out ? 1 : 0;
    if (pair.is_left_out) continue;
    all.cut += pair.is_cut ? 1 : 0;
    const io::Document chosen = all.add(pair.chosen);
    all.pairs.push_back({chosen, all.add(pair.rejected)});
  }
  return all;
}

PreferencePart part_of(EncodedPairs encoded, const std::string& name) {
  return {io::TokenSource::from_ids(std::move(encoded.ids), name),
          std::move(encoded.learnt),
          std::move(encoded.pairs),
          {}};
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
  RenderedRows<Preference> rows = read_rendered(options, model_folder, read_preferences);
  const ConversationEncoder encoder(rows.chat, *rows.tokenizer, options.context + 1);
  EncodedPairs train = encode(rows.train, encoder, options),
               val = encode(rows.validation, encoder, options);
  const bool trains = !options.data.empty();
  const std::string& name = trains ? rows.train.name : rows.validation.name;
  if ((trains ? train : val).pairs.empty())
    user_error(
        "{}: no pair has answers that differ within the context of {}; use a larger --context",
        name, counted(options.context, "token"));
  note_cut(train, options, d);
  note_cut(val, options, d);
  d.has_val = !val.pairs.empty();
  if (!d.has_val && val.left_out == 0 && !options.skips_validation())
    d.notes.push_back(
        fmt::format("no validation: {} has only {}; name a second file with --val-data", name,
                    counted(std::ssize(rows.train.rows), "pair")));
  d.description =
      fmt::format("{}: {} for training and {} for validation; {} tokens, {} of them the answers'",
                  name, counted(std::ssize(train.pairs), "pair"), val.pairs.size(),
                  with_commas(std::ssize(train.ids)), with_commas(train.targets()));
  d.sample_prompt = rows.question(encoder);
  d.tokenizer = std::move(rows.tokenizer);
  d.preferences = PreferenceSet{part_of(std::move(train), rows.train.name),
                                part_of(std::move(val), rows.validation.name)};
  return d;
}

}  // namespace brrr::train
