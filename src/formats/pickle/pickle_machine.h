#pragma once
// Python's pickle, as far as weights need it: numbers, texts, tuples, lists, dicts and tensors.
// Nothing is ever called: a global is known by its name, and one that stands for none of these is a
// UserError that names it ("calls os.system").

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brrr::io {

/// A value of a pickle; it belongs to its Pickle. Lists may hold themselves.
struct PickleValue {
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,
    list,
    tuple,
    dict,
    global,
    storage,
    tensor
  };
  Kind kind = Kind::none;
  int64_t integer = 0;  // boolean, integer; tensor: the first element in its storage
  double real = 0;
  std::string text;  // text; global: "torch.FloatStorage"; storage: its key
  /// Elements; of a dict keys and values in turn; of a storage its global; of a tensor its storage.
  std::vector<PickleValue*> items;
  std::vector<int64_t> sizes, strides;  // tensor, in elements
  int64_t elements = 0;                 // storage

  bool is(Kind k) const { return kind == k; }
  /// The value of a dict under a text; null where there is none.
  const PickleValue* find(std::string_view key) const;
};

class Pickle {
 public:
  /// Runs one pickle from the beginning of `bytes`. Throws UserError: truncated, damaged, an
  /// unknown instruction, a global that is not allowed. `what` stands for the file in messages.
  Pickle(std::span<const std::byte> bytes, std::string what);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }
  /// How many bytes it took: another pickle may follow.
  size_t bytes_read() const { return at_; }

 private:
  using Kind = PickleValue::Kind;

  void run();
  bool step(unsigned char code);  // false at the end
  bool step_number(unsigned char code);
  bool step_text(unsigned char code);
  bool step_container(unsigned char code);
  bool step_memo(unsigned char code);

  [[noreturn]] void damaged(std::string_view reason) const;
  std::span<const std::byte> take(uint64_t bytes);
  template <typename T>
  T number();
  std::string_view line();
  std::string text_of(uint64_t bytes);
  int64_t long_integer(uint64_t bytes);

  PickleValue* make(Kind kind);
  void count(size_t values);
  void push(PickleValue* value);
  void push_text(std::string text);
  void push_integer(int64_t value);
  PickleValue* pop();
  PickleValue* top();
  std::vector<PickleValue*> pop_to_mark();
  void put(uint64_t slot);
  void get(uint64_t slot);
  void push_global(std::string name);
  void call();
  void persistent();
  PickleValue* rebuilt_tensor(const std::vector<PickleValue*>& arguments);
  std::vector<int64_t> integers_of(const PickleValue& tuple) const;

  std::span<const std::byte> bytes_;
  std::string what_;
  size_t at_ = 0;
  size_t counted_ = 0;  // values and elements, which take memory
  std::deque<PickleValue> values_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleValue*> memo_;
  PickleValue* root_ = nullptr;
};

}  // namespace brrr::io
