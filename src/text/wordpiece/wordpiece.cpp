#include "text/wordpiece/wordpiece.h"

#include <algorithm>

#include "base/encoding/utf8.h"
#include "base/errors.h"
#include "formats/json_file.h"

namespace brrr::io {

WordPieceModel::WordPieceModel(const std::vector<std::string_view>& names,
                               const std::vector<bool>& added, WordPieceOptions options)
    : options_(std::move(options)) {
  std::vector<PieceTrie::Entry> beginning, continuing;
  for (size_t i = 0; i < names.size(); ++i) {
    if (added[i] || names[i].empty()) continue;
    const std::string_view name = names[i];
    const auto id = static_cast<uint32_t>(i);
    beginning.emplace_back(name, id);
    if (name.starts_with(options_.continuing) && name != options_.continuing)
      continuing.emplace_back(name.substr(options_.continuing.size()), id);
  }
  beginning_ = PieceTrie(std::move(beginning));
  continuing_ = PieceTrie(std::move(continuing));
}

void WordPieceModel::encode(std::span<const std::string_view> pieces, const char* readable_end,
                            std::vector<int32_t>& ids) const {
  WordSession session(caches_, ids);
  session.add_words(pieces, readable_end,
                    [this](const uint8_t* p, size_t length, std::vector<int32_t>& word_ids) {
                      encode_word({reinterpret_cast<const char*>(p), length}, word_ids);
                    });
  session.finish();
}

void WordPieceModel::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.whole_words) {
    const uint32_t id = beginning_.find(word);
    if (id == PieceTrie::kNone)
      add_unknown(word, ids);
    else
      ids.push_back(static_cast<int32_t>(id));
    return;
  }
  const auto characters = static_cast<size_t>(
      std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xc0) != 0x80; }));
  const size_t before = ids.size();
  bool known = characters <= options_.longest_word;
  const uint8_t* p = as_bytes(word.data());
  const uint8_t* const end = p + word.size();
  for (bool first = true; known && p < end; first = false) {
    const uint8_t* stop = p;
    uint32_t longest = PieceTrie::kNone;
    (first ? beginning_ : continuing_).visit(p, end, [&](const uint8_t* at, uint32_t id) {
      stop = at;
      longest = id;
    });
    known = longest != PieceTrie::kNone;
    if (known) ids.push_back(static_cast<int32_t>(longest));
    p = stop;
  }
  if (!known) {
    ids.resize(before);
    add_unknown(word, ids);
  }
}

void WordPieceModel::add_unknown(std::string_view word, std::vector<int32_t>& ids) const {
  if (options_.unknown < 0)
    user_error(
        "the word {} is not in the vocabulary, and the tokenizer has no token for unknown words "
        "(\"unk_token\" of its model)",
        in_quotes(word));
  ids.push_back(options_.unknown);
}

void WordPieceModel::save(const std::filesystem::path&) const {
  BRRR_CHECK(false, "a model of words is saved by the files that it was read from");
}

}  // namespace brrr::io
