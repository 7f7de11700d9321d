#pragma once
// The part of a tokenizer that turns pieces of text into ids: bytes, characters, BPE or Unigram.
// Immutable; any thread may encode.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// "byte", "char", "bpe", "unigram", "wordpiece" or "wordlevel".
  virtual std::string kind() const = 0;
  /// Appends the ids of the pieces. They lie in a buffer that may be read up to `readable_end`.
  /// Throws UserError for text that the model cannot represent.
  virtual void encode(std::span<const std::string_view> pieces, const char* readable_end,
                      std::vector<int32_t>& ids) const = 0;
  /// May a piece be cut between two characters (code points; kInvalidByte: any beyond ASCII)
  /// without changing its tokens?
  virtual bool may_cut(uint32_t before, uint32_t after) const = 0;
  /// Writes the files of a tokenizer that is no more than this model.
  virtual void save(const std::filesystem::path& folder) const = 0;
  /// Tokenizer::prepare().
  virtual void prepare(int64_t /*threads*/) const {}
};

/// Collects pieces and hands them to a model many at a time.
class PieceSink {
 public:
  /// `words`, where it is given, gets for each id the index of its piece.
  PieceSink(const TokenModel& model, std::vector<int32_t>& ids,
            std::vector<int32_t>* words = nullptr)
      : model_(model), ids_(ids), words_(words) {}

  /// `piece` lies in the buffer of the innermost Buffer.
  void add(std::string_view piece) {
    new (pieces() + count_++) std::string_view(piece);
    if (count_ == kPieces) flush();
  }
  /// An id that no model makes: an added token.
  void add_id(int32_t id) {
    flush();
    ids_.push_back(id);
    if (words_ != nullptr) end_word();
  }

  /// While it lives, pieces lie in `text`, which must outlive it. Call done() at the end.
  class Buffer {
   public:
    Buffer(PieceSink& sink, std::string_view text) : sink_(sink), outer_(sink.readable_end_) {
      sink.flush();
      sink.readable_end_ = text.data() + text.size();
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    void done() { sink_.flush(); }
    ~Buffer() {
      sink_.count_ = 0;  // what an exception left
      sink_.readable_end_ = outer_;
    }

   private:
    PieceSink& sink_;
    const char* outer_;
  };

 private:
  void flush() {
    if (words_ != nullptr) {
      for (size_t i = 0; i < count_; ++i) {
        model_.encode({pieces() + i, 1}, readable_end_, ids_);
        end_word();
      }
    } else if (count_ > 0) {
      model_.encode({pieces(), count_}, readable_end_, ids_);
    }
    count_ = 0;
  }
  void end_word() { words_->resize(ids_.size(), word_++); }
  std::string_view* pieces() { return reinterpret_cast<std::string_view*>(storage_); }

  const TokenModel& model_;
  std::vector<int32_t>& ids_;
  std::vector<int32_t>* words_;
  int32_t word_ = 0;
  const char* readable_end_ = nullptr;
  size_t count_ = 0;
  // Not initialised: that would take longer than a short text.
  static constexpr size_t kPieces = 256;
  alignas(std::string_view) std::byte storage_[kPieces * sizeof(std::string_view)];
};

}  // namespace brrr::io
