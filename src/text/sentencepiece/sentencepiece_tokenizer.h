#pragma once
// The tokenizer of a tokenizer.model of SentencePiece, BPE or Unigram: the ids and the text that
// the library `sentencepiece` gives. Control pieces in a text are ordinary text, as there.

#include <map>
#include <memory>
#include <string>

#include "text/bpe/tokenizer_bpe.h"
#include "text/sentencepiece/sentencepiece_model.h"
#include "text/tokenizer.h"

namespace brrr::io {

/// `files` holds the bytes of "tokenizer.model" and, where the folder has it, the text of
/// "tokenizer_config.json", which may name the tokens that begin and end a text and whether they
/// are added. Otherwise the piece <s> is added before a text, or, where a model has none (T5), </s>
/// behind it. `where` is the path of the model, for errors. Throws UserError.
std::unique_ptr<Tokenizer> read_sentencepiece(std::map<std::string, std::string> files,
                                              const std::string& where);

/// The model of BPE with these pieces: a merge for every two that make a third, in the order of its
/// score. Throws UserError, in which `where` names the file, for unused pieces and for pieces with
/// a character that is no piece.
BpeModel bpe_model_of(const SentencePieceModel& from, const std::string& where);

}  // namespace brrr::io
