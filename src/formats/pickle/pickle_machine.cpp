#include "formats/pickle/pickle_machine.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "base/errors.h"

namespace brrr::io {
namespace {

constexpr std::string_view kOrderedDict = "collections.OrderedDict", kSize = "torch.Size",
                           kDevice = "torch.device", kRebuild = "torch._utils._rebuild_tensor",
                           kRebuild2 = "torch._utils._rebuild_tensor_v2",
                           kParameter = "torch._utils._rebuild_parameter";

/// Names that stand for values and may not be called: types of storages and of numbers.
bool is_named_value(std::string_view name) {
  if (name.starts_with("torch.storage."))
    name.remove_prefix(14);
  else if (name.starts_with("torch."))
    name.remove_prefix(6);
  else
    return false;
  if (name.ends_with("Storage"))
    return std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    });
  for (const std::string_view dtype :
       {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
        "bool", "complex64", "complex128", "strided", "contiguous_format", "channels_last"})
    if (name == dtype) return true;
  return false;
}

bool is_callable(std::string_view name) {
  for (const std::string_view known :
       {kOrderedDict, kSize, kDevice, kRebuild, kRebuild2, kParameter})
    if (name == known) return true;
  return false;
}

}  // namespace

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::dict) return nullptr;
  // The last of equal keys, as Python has it.
  for (size_t i = items.size(); i >= 2; i -= 2)
    if (items[i - 2]->is(Kind::text) && items[i - 2]->text == key) return items[i - 1];
  return nullptr;
}

Pickle::Pickle(std::span<const std::byte> bytes, std::string what)
    : bytes_(bytes), what_(std::move(what)) {
  run();
}

void Pickle::damaged(std::string_view reason) const {
  user_error("{}: its pickle is damaged at byte {}: {}", what_, at_, reason);
}

std::span<const std::byte> Pickle::take(uint64_t bytes) {
  if (bytes > bytes_.size() - at_) user_error("{}: its pickle is truncated", what_);
  const auto taken = bytes_.subspan(at_, bytes);
  at_ += bytes;
  return taken;
}

template <typename T>
T Pickle::number() {
  T value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

/// Up to the end of a line, which the old protocol writes texts and numbers as.
std::string_view Pickle::line() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + at_,
                              bytes_.size() - at_);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) user_error("{}: its pickle is truncated", what_);
  at_ += end + 1;
  return rest.substr(0, end);
}

std::string Pickle::text_of(uint64_t bytes) {
  const auto taken = take(bytes);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

/// An integer of any length, low byte first, signed. What does not fit 64 bits is 0: only the magic
/// number of old files is as long.
int64_t Pickle::long_integer(uint64_t bytes) {
  const auto taken = take(bytes);
  if (taken.size() > 8 || taken.empty()) return 0;
  uint64_t value = static_cast<int8_t>(taken.back()) < 0 ? ~uint64_t{0} : 0;
  for (size_t i = taken.size(); i-- > 0;) value = value << 8 | static_cast<uint64_t>(taken[i]);
  return static_cast<int64_t>(value);
}

void Pickle::count(size_t values) {
  constexpr size_t kMostValues = 16'000'000;
  counted_ += values;
  if (counted_ > kMostValues)
    user_error("{}: its pickle makes more than {} values", what_, kMostValues);
}

PickleValue* Pickle::make(Kind kind) {
  count(1);
  values_.emplace_back().kind = kind;
  return &values_.back();
}
void Pickle::push(PickleValue* value) { stack_.push_back(value); }
void Pickle::push_text(std::string text) {
  PickleValue* value = make(Kind::text);
  value->text = std::move(text);
  push(value);
}
void Pickle::push_integer(int64_t number) {
  PickleValue* value = make(Kind::integer);
  value->integer = number;
  push(value);
}

PickleValue* Pickle::top() {
  if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
    damaged("it takes a value that is not there");
  return stack_.back();
}
PickleValue* Pickle::pop() {
  PickleValue* value = top();
  stack_.pop_back();
  return value;
}
std::vector<PickleValue*> Pickle::pop_to_mark() {
  if (marks_.empty()) damaged("it goes back to a mark that is not there");
  const size_t mark = marks_.back();
  marks_.pop_back();
  std::vector<PickleValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
  stack_.resize(mark);
  return items;
}

void Pickle::put(uint64_t slot) {
  // Slots are numbered in order, with few gaps: as many as there are bytes.
  if (slot > bytes_.size()) damaged("a number in its memory is too large");
  if (slot >= memo_.size()) memo_.resize(slot + 1, nullptr);
  memo_[slot] = top();
}
void Pickle::get(uint64_t slot) {
  if (slot >= memo_.size() || memo_[slot] == nullptr)
    damaged("it recalls a value that it did not store");
  push(memo_[slot]);
}

void Pickle::push_global(std::string name) {
  if (!is_callable(name) && !is_named_value(name))
    user_error(
        "{}: calls {}, which is never run; expected a file of tensors in dicts, lists and tuples. "
        "Save model.state_dict() alone, or as safetensors",
        what_, name);
  PickleValue* value = make(Kind::global);
  value->text = std::move(name);
  push(value);
}

std::vector<int64_t> Pickle::integers_of(const PickleValue& tuple) const {
  std::vector<int64_t> list;
  constexpr size_t kMostAxes = 64;
  if (!tuple.is(Kind::tuple) || tuple.items.size() > kMostAxes)
    damaged("a tensor's sizes are no tuple, or too many");
  for (const PickleValue* item : tuple.items) {
    if (!item->is(Kind::integer)) damaged("a tensor's size is no integer");
    list.push_back(item->integer);
  }
  return list;
}

PickleValue* Pickle::rebuilt_tensor(const std::vector<PickleValue*>& arguments) {
  if (arguments.size() < 4 || !arguments[0]->is(Kind::storage) || !arguments[1]->is(Kind::integer))
    damaged("a tensor lacks its storage, offset, sizes or strides");
  PickleValue* tensor = make(Kind::tensor);
  tensor->items = {arguments[0]};
  tensor->integer = arguments[1]->integer;
  tensor->sizes = integers_of(*arguments[2]);
  tensor->strides = integers_of(*arguments[3]);
  if (tensor->sizes.size() != tensor->strides.size())
    damaged("a tensor has other numbers of sizes and strides");
  return tensor;
}

/// A global and a tuple of arguments become what the call would give.
void Pickle::call() {
  const PickleValue* tuple = pop();
  const PickleValue* global = pop();
  if (!tuple->is(Kind::tuple)) damaged("the arguments of a call are no tuple");
  const std::string name = global->is(Kind::global) ? global->text : "a value";
  const auto& arguments = tuple->items;
  if (name == kRebuild || name == kRebuild2) {
    push(rebuilt_tensor(arguments));
  } else if (name == kParameter && !arguments.empty() && arguments[0]->is(Kind::tensor)) {
    push(arguments[0]);
  } else if (name == kSize && arguments.size() == 1 && arguments[0]->is(Kind::tuple)) {
    push(arguments[0]);
  } else if (name == kDevice && !arguments.empty() && arguments[0]->is(Kind::text)) {
    push_text(arguments[0]->text);
  } else if (name == kOrderedDict) {
    PickleValue* dict = make(Kind::dict);
    if (!arguments.empty())
      for (const PickleValue* pair : arguments[0]->items) {
        count(2);
        if (pair->items.size() != 2) damaged("an OrderedDict's items are no pairs");
        dict->items.insert(dict->items.end(), pair->items.begin(), pair->items.end());
      }
    push(dict);
  } else {
    user_error("{}: calls {} in a way that is not known", what_, name);
  }
}

/// ("storage", type, key, location, elements[, view]).
void Pickle::persistent() {
  const PickleValue* id = pop();
  const auto& items = id->items;
  if (!id->is(Kind::tuple) || items.size() < 5 || !items[0]->is(Kind::text) ||
      items[0]->text != "storage" || !items[1]->is(Kind::global) ||
      !items[1]->text.ends_with("Storage") || !items[2]->is(Kind::text) ||
      !items[4]->is(Kind::integer) || items[4]->integer < 0)
    damaged("a storage of tensors is described otherwise than PyTorch does");
  if (items.size() > 5 && !items[5]->is(Kind::none))
    user_error(
        "{}: holds a view of a storage, as PyTorch before 0.4 wrote them; save it by a newer one",
        what_);
  PickleValue* storage = make(Kind::storage);
  storage->text = items[2]->text;
  storage->elements = items[4]->integer;
  storage->items = {items[1]};
  push(storage);
}

bool Pickle::step_number(unsigned char code) {
  switch (code) {
    case 'N':
      push(make(Kind::none));
      return true;
    case 0x88:
    case 0x89: {
      PickleValue* value = make(Kind::boolean);
      value->integer = code == 0x88;
      push(value);
      return true;
    }
    case 'J':
      push_integer(number<int32_t>());
      return true;
    case 'K':
      push_integer(number<uint8_t>());
      return true;
    case 'M':
      push_integer(number<uint16_t>());
      return true;
    case 0x8a:
      push_integer(long_integer(number<uint8_t>()));
      return true;
    case 0x8b:
      push_integer(long_integer(number<uint32_t>()));
      return true;
    case 'I':
    case 'L': {
      std::string_view digits = line();
      if (digits.ends_with('L')) digits.remove_suffix(1);
      int64_t value = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error != std::errc() || end != digits.data() + digits.size())
        damaged("an integer is no number");
      push_integer(value);
      return true;
    }
    case 'F': {
      const std::string_view digits = line();
      PickleValue* value = make(Kind::real);
      std::from_chars(digits.data(), digits.data() + digits.size(), value->real);
      push(value);
      return true;
    }
    case 'G': {
      PickleValue* value = make(Kind::real);
      uint64_t bits = 0;
      for (const std::byte b : take(8)) bits = bits << 8 | static_cast<uint64_t>(b);
      value->real = std::bit_cast<double>(bits);
      push(value);
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::step_text(unsigned char code) {
  switch (code) {
    case 'X':
    case 'T':
    case 'B':
      push_text(text_of(number<uint32_t>()));
      return true;
    case 0x8c:
    case 'U':
    case 'C':
      push_text(text_of(number<uint8_t>()));
      return true;
    case 0x8d:
    case 0x8e:
      push_text(text_of(number<uint64_t>()));
      return true;
    case 'V':
      push_text(std::string(line()));
      return true;
    case 'S': {
      const std::string_view quoted = line();
      if (quoted.size() < 2) damaged("a text lacks its quotes");
      push_text(std::string(quoted.substr(1, quoted.size() - 2)));
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::step_container(unsigned char code) {
  const auto container = [&](Kind kind, std::vector<PickleValue*> items) {
    if (kind == Kind::dict && items.size() % 2 != 0) damaged("a key has no value");
    PickleValue* value = make(kind);
    value->items = std::move(items);
    push(value);
  };
  const auto extend = [&](Kind kind, const std::vector<PickleValue*>& items) {
    PickleValue* into = top();
    if (!into->is(kind) || (kind == Kind::dict && items.size() % 2 != 0))
      damaged("it adds to a value that is no list or dict");
    into->items.insert(into->items.end(), items.begin(), items.end());
  };
  switch (code) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case '0':
      // A mark on top is taken off.
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        pop();
      return true;
    case '1':
      pop_to_mark();
      return true;
    case '2':
      push(top());
      return true;
    case ']':
      container(Kind::list, {});
      return true;
    case 'l':
      container(Kind::list, pop_to_mark());
      return true;
    case 'a': {
      PickleValue* item = pop();
      extend(Kind::list, {item});
      return true;
    }
    case 'e': {
      const auto items = pop_to_mark();
      extend(Kind::list, items);
      return true;
    }
    case ')':
      container(Kind::tuple, {});
      return true;
    case 't':
      container(Kind::tuple, pop_to_mark());
      return true;
    case 0x85:
    case 0x86:
    case 0x87: {
      std::vector<PickleValue*> items(code - 0x84u);
      for (size_t i = items.size(); i-- > 0;) items[i] = pop();
      container(Kind::tuple, std::move(items));
      return true;
    }
    case '}':
      container(Kind::dict, {});
      return true;
    case 'd':
      container(Kind::dict, pop_to_mark());
      return true;
    case 's': {
      PickleValue* value = pop();
      PickleValue* key = pop();
      extend(Kind::dict, {key, value});
      return true;
    }
    case 'u': {
      const auto items = pop_to_mark();
      extend(Kind::dict, items);
      return true;
    }
    default:
      return false;
  }
}

bool Pickle::step_memo(unsigned char code) {
  const auto slot_of_line = [&] {
    const std::string_view digits = line();
    uint64_t slot = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
    if (error != std::errc() || end != digits.data() + digits.size())
      damaged("a number in its memory is no number");
    return slot;
  };
  switch (code) {
    case 'q':
      put(number<uint8_t>());
      return true;
    case 'r':
      put(number<uint32_t>());
      return true;
    case 'p':
      put(slot_of_line());
      return true;
    case 0x94:
      put(memo_.size());
      return true;
    case 'h':
      get(number<uint8_t>());
      return true;
    case 'j':
      get(number<uint32_t>());
      return true;
    case 'g':
      get(slot_of_line());
      return true;
    default:
      return false;
  }
}

bool Pickle::step(unsigned char code) {
  if (step_number(code) || step_text(code) || step_container(code) || step_memo(code)) return true;
  switch (code) {
    case 0x80: {
      constexpr int kNewestProtocol = 5;
      const int protocol = number<uint8_t>();
      if (protocol > kNewestProtocol)
        damaged(fmt::format("its protocol is {}; expected at most {}", protocol, kNewestProtocol));
      return true;
    }
    case 0x95:  // how long a frame is
      take(8);
      return true;
    case 'c':
    case 'i': {
      const std::string module(line());
      push_global(module + "." + std::string(line()));
      if (code == 'i') damaged("it makes an object in a way that PyTorch does not");
      return true;
    }
    case 0x93: {
      const PickleValue* name = pop();
      const PickleValue* module = pop();
      if (!name->is(Kind::text) || !module->is(Kind::text)) damaged("a global has no name");
      push_global(module->text + "." + name->text);
      return true;
    }
    case 'R':
    case 0x81:
      call();
      return true;
    case 'b': {
      // The attributes of an OrderedDict say versions of modules; nothing else has attributes.
      pop();
      if (!top()->is(Kind::dict)) damaged("it sets attributes of a value that has none");
      return true;
    }
    case 'Q':
      persistent();
      return true;
    case '.':
      root_ = pop();
      return false;
    default:
      damaged(fmt::format("the instruction {:#04x} is unknown, or not allowed", code));
  }
}

void Pickle::run() {
  while (step(number<unsigned char>())) {
  }
}

}  // namespace brrr::io
