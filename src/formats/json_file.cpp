#include "formats/json_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace brrr::io {

std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 100;
  size_t kept = std::min(text.size(), kLongest);
  // No character is cut: it has at most three bytes after its first.
  for (int i = 0; i < 3 && kept < text.size() && kept > 0; ++i)
    if ((static_cast<unsigned char>(text[kept]) & 0xc0) == 0x80) --kept;
  std::string out = "'";
  for (const char c : text.substr(0, kept)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

namespace {

/// Builds a value from what the library's parser finds, in time linear in the text (its own parser
/// with a callback looks through a whole list at the end of every object in it), and notices keys
/// that come twice, of which it would silently keep the last.
template <typename AnyJson>
class JsonBuilder final : public nlohmann::json_sax<AnyJson> {
 public:
  using Sax = nlohmann::json_sax<AnyJson>;
  explicit JsonBuilder(const std::string& what) : what_(what) {}
  AnyJson& value() { return root_; }
  /// The first key that its object has already, in quotes.
  const std::string& duplicate() const { return duplicate_; }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(typename Sax::number_integer_t value) override { return put(value); }
  bool number_unsigned(typename Sax::number_unsigned_t value) override { return put(value); }
  bool number_float(typename Sax::number_float_t value, const typename Sax::string_t&) override {
    return put(value);
  }
  bool string(typename Sax::string_t& value) override { return put(std::move(value)); }
  bool binary(typename Sax::binary_t& value) override { return put(std::move(value)); }
  bool start_object(size_t) override { return open(AnyJson::object()); }
  bool start_array(size_t) override { return open(AnyJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(typename Sax::string_t& name) override {
    auto& members = open_.back()->template get_ref<typename AnyJson::object_t&>();
    const auto [member, is_new] = members.emplace(name, nullptr);
    key_ = in_quotes(name);
    if (!is_new && duplicate_.empty()) duplicate_ = key_;
    member_ = &member->second;
    return true;
  }
  bool parse_error(size_t, const std::string& token,
                   const typename AnyJson::exception& error) override {
    if (const auto* const parsing = dynamic_cast<const typename AnyJson::parse_error*>(&error))
      throw *parsing;
    user_error("{}: {}the number {} is too large; expected at most 1.8e308", what_,
               key_.empty() ? "" : key_ + ": ", in_quotes(token));
  }

 private:
  /// The place of the next value.
  AnyJson& place() {
    if (open_.empty()) return root_;
    if (open_.back()->is_object()) return *member_;
    return open_.back()->template get_ref<typename AnyJson::array_t&>().emplace_back();
  }
  template <typename Value>
  bool put(Value&& value) {
    place() = std::forward<Value>(value);
    return true;
  }
  bool open(AnyJson&& empty) {
    if (open_.size() >= static_cast<size_t>(kDeepestJson))
      user_error("{}: JSON is nested more than {} levels deep", what_, kDeepestJson);
    AnyJson& here = place();
    here = std::move(empty);
    open_.push_back(&here);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& what_;
  AnyJson root_;
  std::vector<AnyJson*> open_;  // only the innermost grows, so the others stay where they are
  AnyJson* member_ = nullptr;
  std::string duplicate_, key_;  // key_: the last one
};

template <typename AnyJson>
AnyJson parse(std::string_view text, const std::string& what) {
  try {
    JsonBuilder<AnyJson> builder(what);
    AnyJson::sax_parse(text.begin(), text.end(), &builder);
    if (!builder.duplicate().empty())
      user_error("{}: the key {} appears twice in one JSON object", what, builder.duplicate());
    return std::move(builder.value());
  } catch (const typename AnyJson::parse_error& e) {
    const size_t at = std::min(e.byte == 0 ? 0 : e.byte - 1, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start =
        before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    const char* reason = text.empty()        ? "the file is empty"
                         : at >= text.size() ? "the text ends too early"
                                             : "unexpected text or a byte that is not UTF-8";
    user_error("{}: not valid JSON at line {}, column {}: {}", what, line, at - line_start + 1,
               reason);
  }
}

}  // namespace

Json parse_json(std::string_view text, const std::string& what) { return parse<Json>(text, what); }

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what) {
  return parse<nlohmann::ordered_json>(text, what);
}

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the string " + in_quotes(value.get_ref<const std::string&>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "the number " + value.dump();
    default:
      return value.dump();
  }
}

}  // namespace brrr::io
