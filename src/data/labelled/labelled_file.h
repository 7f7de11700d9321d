#pragma once
// Texts with labels, from files that people have: rows of fields separated by tabs, commas or
// semicolons (tsv.h), JSON lines (json_rows.h), and for the tagging of words also files in the
// manner of CoNLL, each packed by gzip or Zstandard or not. Which kind it is, the name and the
// content tell. Which column is which is told by a header, by options, or by the fields themselves
// where only one reading is possible; a file that leaves it open is an error that says what to
// write, never a guess. What was decided stands in the notes.
//
//   header     label<tab>text: any order. Columns are called text, sentence or sentence1; text2 or
//              sentence2; label, labels or score; for tags also words or tokens; tags or ner_tags.
//              Upper and lower case are alike. Other columns are not read.
//   no header  Two or three columns, one of which is the label: the label is first or last.
//              Values: the only column of numbers. Classes: the only column of single words.
//   tags       "token<tab>tag" or "token ... tag" a line with an empty line after each sentence;
//              lines of -DOCSTART- are left out. Or rows: words in the text's column, as many tags
//              in the label's, separated by spaces; in JSON also lists of them.
//   JSON       {"text": "...", "label": "..."}: the names of fields are those of a header.
//
// Everything is checked before it is used; errors name the line.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/labelled/tsv.h"

namespace brrr::io {

/// What a label is: one of some names, numbers, or a name for each word.
enum class LabelKind { kClasses, kValues, kTags };
enum class TsvHeader { kAuto, kYes, kNo };

/// "auto", "yes", "no". Throws UserError (usage) for another name.
TsvHeader header_from_name(std::string_view name);

struct LabelledFileOptions {
  LabelKind kind = LabelKind::kClasses;
  /// The name of a column in the header, or its number from 1. Empty: told by the file.
  std::string text_column = {}, text2_column = {}, label_column = {};
  /// Whether the first row names the columns. kAuto: it does where options name a column, or where
  /// one of its fields is a name that stands above for labels.
  TsvHeader header = TsvHeader::kAuto;
  Quoting quoting = Quoting::kAuto;  // for rows of words and tags as kNone
  /// Accept class names that look like measurements or ids, which are refused otherwise.
  bool any_labels = false;
  /// The labels that there are, in the order of their ids. Empty: those of the file, sorted, as
  /// numbers where all are integers, else by code point.
  std::vector<std::string> labels = {};
};

struct LabelledRow {
  std::string text, text2;         // not for tags
  int32_t label = -1;              // of classes: the index in LabelledFile::labels
  std::vector<float> values;       // of values: one or more
  std::vector<std::string> words;  // of tags
  std::vector<int32_t> tags;       // of tags: one for each word
  int64_t line = 0;                // where it begins in the file, from 1
};

struct LabelledFile {
  std::string name;  // for messages
  LabelKind kind = LabelKind::kClasses;
  bool has_pairs = false;           // rows have a second text
  std::vector<LabelledRow> rows;    // at least one
  std::vector<std::string> labels;  // of classes and tags
  int64_t values_per_row = 0;       // of values: one, or as many as a field has, by spaces
  std::vector<std::string> notes;   // for the user: what was decided, left out, or is odd
};

/// Larger files are refused.
inline constexpr uint64_t kLargestLabelledFile = uint64_t{4} << 30;

/// Throws UserError: the file cannot be read or is too large; no text; no row; a row with too many
/// or too few columns; columns that cannot be told apart; a label that is none of
/// `options.labels`, empty, or no number; labels that look like measurements or ids; numbers of
/// words and tags that differ; an open quote.
LabelledFile read_labelled_file(const std::filesystem::path& path,
                                const LabelledFileOptions& options);
/// The same for the content of a file; `name` stands for it in messages.
LabelledFile parse_labelled(std::string_view text, const std::string& name,
                            const LabelledFileOptions& options);

/// Another file for the task of `like`, to evaluate on: with its labels. Throws as
/// read_labelled_file does, and where its rows are not of the form of `like`: pairs of texts, how
/// many numbers.
LabelledFile read_labelled_file_like(const LabelledFile& like, const std::filesystem::path& path,
                                     LabelledFileOptions options);

struct LabelledSplit {
  LabelledFile train, validation;
};
/// Divides the rows of a file: every k-th row validates, k = 1 / fraction rounded, counted from 1;
/// a fraction of 0 holds no row out. Throws UserError (usage) for a fraction outside [0, 0.5], and
/// UserError for fewer than k rows.
LabelledSplit hold_out(LabelledFile file, double fraction);

}  // namespace brrr::io
