#pragma once
// What --task chat trains on: conversations as documents whose targets are the assistant's tokens.

#include <string>

#include "folders/chat_template.h"
#include "train/dataset.h"

namespace brrr::train {

/// Reads, renders and encodes the conversations of --data and --val-data, or holds out every k-th
/// one; without --data there is only validation. `model_folder` is that of the model or of the
/// checkpoint that the run goes on from: it brings the tokenizer, and the chat template unless
/// --chat-template names one. Throws UserError that names the line.
Dataset chat_dataset(const TrainOptions& options, const std::string& model_folder);

/// The template of --chat-template, or that of the model, which may have one for conversations with
/// tools. Throws UserError where there is none.
io::ChatTemplate chat_template_of(const TrainOptions& options, const std::string& model_folder,
                                  bool with_tools);

/// The text of chat_template.jinja for the folder of a run that goes on from `model_folder`; "":
/// tokenizer_config.json has the template, or there is none.
std::string kept_chat_template(const TrainOptions& options, const fs::path& model_folder);

}  // namespace brrr::train
