#include "ir/attrs.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/errors.h"
#include "base/hash.h"
#include "ir/text.h"

namespace brrr {

Attrs::Attrs(std::initializer_list<Entry> entries) {
  for (const Entry& e : entries) set(e.first, e.second);
}

const std::vector<Attrs::Entry>& Attrs::entries() const {
  static const std::vector<Entry> none;
  return entries_ ? *entries_ : none;
}

std::vector<Attrs::Entry>& Attrs::own() {
  if (!entries_)
    entries_ = std::make_shared<std::vector<Entry>>();
  else if (entries_.use_count() > 1)
    entries_ = std::make_shared<std::vector<Entry>>(*entries_);
  return *entries_;
}

namespace {

// One spelling of each value, so that equal attributes compare equal.
void make_signed(AttrValue& value) {
  constexpr auto fits = [](uint64_t x) { return x <= static_cast<uint64_t>(INT64_MAX); };
  if (const auto* x = std::get_if<uint64_t>(&value)) {
    if (fits(*x)) value = static_cast<int64_t>(*x);
  } else if (const auto* list = std::get_if<std::vector<uint64_t>>(&value)) {
    if (std::all_of(list->begin(), list->end(), fits))
      value = std::vector<int64_t>(list->begin(), list->end());
  }
}

}  // namespace

void Attrs::set(std::string_view name, AttrValue value) {
  make_signed(value);
  std::vector<Entry>& list = own();
  auto at = std::lower_bound(list.begin(), list.end(), name,
                             [](const Entry& e, std::string_view n) { return e.first < n; });
  if (at != list.end() && at->first == name)
    at->second = std::move(value);
  else
    list.insert(at, Entry(std::string(name), std::move(value)));
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const Entry& e : entries())
    if (e.first == name) return &e.second;
  return nullptr;
}

void Attrs::missing(std::string_view name) const {
  BRRR_CHECK(false, "attribute '{}' is absent or of another type in {}", name, str());
  __builtin_unreachable();
}

std::string double_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

/// A region's graph, its lines indented by one step more than what they stand in.
std::string indented(const std::string& text) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = text.find('\n', begin) + 1;
    out += "  " + text.substr(begin, end - begin);
    begin = end;
  }
  return out;
}

std::string value_text(const AttrValue& value) {
  struct Printer {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(uint64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return double_text(v); }
    std::string operator()(const std::string& v) const { return quoted(v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return fmt::format("({})", fmt::join(v, ","));
    }
    std::string operator()(const std::vector<uint64_t>& v) const {
      return fmt::format("({})", fmt::join(v, ","));
    }
    std::string operator()(const std::vector<double>& v) const {
      std::string out = "(";
      for (size_t i = 0; i < v.size(); ++i) out += (i ? "," : "") + double_text(v[i]);
      return out + ")";
    }
    std::string operator()(DType v) const { return std::string(name_of(v)); }
    std::string operator()(const Shape& v) const { return v.str(); }
    std::string operator()(const Region& v) const {
      return "{\n" + indented(print(v.graph())) + "}";
    }
  };
  return std::visit(Printer{}, value);
}

uint64_t bits_of(double x) { return std::isnan(x) ? ~uint64_t{0} : std::bit_cast<uint64_t>(x); }

bool same(double a, double b) { return bits_of(a) == bits_of(b); }

bool same(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<double>(&a)) return same(*x, std::get<double>(b));
  if (const auto* x = std::get_if<std::vector<double>>(&a)) {
    const auto& y = std::get<std::vector<double>>(b);
    return std::equal(x->begin(), x->end(), y.begin(), y.end(),
                      [](double p, double q) { return same(p, q); });
  }
  return a == b;
}

void add_to(Hash& hash, const AttrValue& value) {
  struct Adder {
    Hash& hash;
    void operator()(bool v) const { hash.add(v); }
    void operator()(int64_t v) const { hash.add(v); }
    void operator()(uint64_t v) const { hash.add(v); }
    void operator()(double v) const { hash.add(bits_of(v)); }
    void operator()(const std::string& v) const { hash.add(v); }
    void operator()(const std::vector<int64_t>& v) const {
      for (const int64_t x : v) hash.add(x);
    }
    void operator()(const std::vector<uint64_t>& v) const {
      for (const uint64_t x : v) hash.add(x);
    }
    void operator()(const std::vector<double>& v) const {
      for (const double x : v) hash.add(bits_of(x));
    }
    void operator()(DType v) const { hash.add(static_cast<uint8_t>(v)); }
    void operator()(const Shape& v) const {
      for (const Dim& d : v.dims()) hash.add(d.hash_word());
    }
    void operator()(const Region& v) const { hash.add(v.hash()); }
  };
  hash.add(value.index());
  std::visit(Adder{hash}, value);
}

}  // namespace

std::string Attrs::str() const {
  if (empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : entries())
    out += fmt::format("{}{}={}", out.size() > 1 ? ", " : "", name, value_text(value));
  return out + "}";
}

bool Attrs::operator==(const Attrs& other) const {
  if (entries_ == other.entries_) return true;
  return std::equal(begin(), end(), other.begin(), other.end(), [](const Entry& a, const Entry& b) {
    return a.first == b.first && same(a.second, b.second);
  });
}

uint64_t hash_of(const Attrs& attrs) {
  Hash hash;
  for (const auto& [name, value] : attrs) {
    hash.add(name);
    add_to(hash, value);
  }
  return hash.value();
}

}  // namespace brrr
