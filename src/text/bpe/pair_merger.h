#pragma once
// Learning tokens by merging: the most frequent pair of neighbours becomes a token, again and
// again. BPE and WordPiece differ in what words begin as and in how a pair is spelled.
//
// The symbols of all words lie end to end in one array, linked so that merging is local; each pair
// knows its count and the places where it occurs. One merge costs its occurrences, not the text, so
// a text without spaces is no slower than another.
//
// A token is made in exactly one step (a pair that would spell an existing token is passed over),
// hence the occurrences of a pair are all born in one step, in ascending order, and its count only
// falls afterwards. That makes a lazy heap exact and keeps "leftmost first" without sorting.

#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace brrr::io {

struct LearntMerge {
  uint32_t left, right, result;
};

class PairMerger {
 public:
  using Spell = std::function<std::string(const std::string& left, const std::string& right)>;
  /// `tokens`: those that words begin as. `taken`: spellings that no merge may have.
  PairMerger(std::vector<std::string> tokens, Spell spell, std::vector<std::string> taken = {});

  /// A word of tokens and how often it occurs; before the first step(). Throws UserError when all
  /// words together have 4 Gi tokens.
  void add_word(std::span<const uint32_t> tokens, int64_t count);
  /// One merge, of the most frequent pair, ties to the smaller ids; false when no pair occurs
  /// twice.
  bool step();

  const std::vector<std::string>& tokens() const { return tokens_; }
  const std::vector<LearntMerge>& merges() const { return merges_; }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;

  struct Symbol {
    uint32_t id, previous, next, word;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> places;  // of the left symbol, ascending; some may have changed since
  };
  struct Candidate {
    int64_t count;
    uint32_t left, right, pair;
    bool operator<(const Candidate& other) const {  // the top of the heap is the greatest
      if (count != other.count) return count < other.count;
      if (left != other.left) return left > other.left;
      return right > other.right;
    }
  };
  /// (left, right) -> index into pairs_: open addressing, at most half full.
  class PairIndex {
   public:
    uint32_t find_or_add(uint32_t left, uint32_t right, uint32_t next_index);

   private:
    struct Slot {
      uint64_t key = 0;
      uint32_t index = kNone;
    };
    Slot& locate(uint64_t key);
    void grow();
    std::vector<Slot> slots_;
    size_t used_ = 0;
  };

  Pair& pair_at(uint32_t place);
  void add_pair(uint32_t place);
  void offer_new_pairs();
  void begin();
  void merge(const Candidate& best);

  std::vector<std::string> tokens_;
  Spell spell_;
  std::unordered_set<std::string> spelled_;
  std::vector<Symbol> symbols_;
  std::vector<int64_t> counts_;  // by word
  std::vector<LearntMerge> merges_;
  PairIndex index_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<uint32_t, uint32_t>> keys_;  // of pairs_
  std::priority_queue<Candidate> heap_;
  size_t offered_ = 0;
  bool has_begun_ = false;
};

}  // namespace brrr::io
