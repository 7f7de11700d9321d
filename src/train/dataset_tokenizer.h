#pragma once
// The tokenizer of a run: which one the options mean, and whether shards are of it.

#include <functional>
#include <memory>
#include <optional>

#include "text/tokenizer.h"
#include "train/options.h"

namespace brrr::train {

/// Makes a tokenizer from the text: of that kind, or one of characters.
using Learn =
    std::function<std::unique_ptr<io::Tokenizer>(const std::optional<LearntTokenizer>& kind)>;
/// From a text that is in memory. Throws UserError as train_bpe and train_wordpiece do.
std::unique_ptr<io::Tokenizer> learn_tokenizer(std::string_view text,
                                               const std::optional<LearntTokenizer>& kind);

/// The one that --tokenizer names; the one beside the shards when it is empty. `learn` is empty
/// where there is no text to learn from. Throws UserError.
std::unique_ptr<io::Tokenizer> make_tokenizer(const TrainOptions& options, const Learn& learn);

bool same_tokens(const io::Tokenizer& a, const io::Tokenizer& b);

/// Whether --tokenizer `name` asks for this one.
bool asks_for(const std::string& name, const io::Tokenizer& tokenizer);

/// Ids of one tokenizer read with another are noise that trains without an error. The one in use is
/// that of the folder `model`, or where that is "" the one that --tokenizer `asked` for. Throws
/// UserError where another stands beside the shards.
void check_tokenizer(const io::Tokenizer& used, const std::string& asked, const std::string& model,
                     const std::vector<std::string>& shards);

}  // namespace brrr::train
