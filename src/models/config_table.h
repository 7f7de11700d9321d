#pragma once
// ConfigTable declares each field of a configuration once: its key in config.json, its limits, and
// the option of `brrr train` that sets it. Reading, writing, checks, --help and refusals come from
// the rows. A configuration is a plain struct whose defaults are those of the class in
// transformers.

#include <functional>
#include <string>
#include <vector>

#include "base/options.h"
#include "models/config_limits.h"
#include "models/config_reader.h"

namespace brrr::models {

/// Spellings of an enumeration's values in the order of the values; the first one is written.
using Spellings = std::vector<std::vector<std::string>>;

/// The index of the value that `key` holds. Throws UserError that lists what is supported.
size_t read_choice(const ConfigReader& keys, const char* key, const Spellings& all);
/// "3,4,6" as numbers. Throws UserError (exit 2) for none, more than `longest`, and numbers outside
/// 1 to `most`.
std::vector<int64_t> parse_sizes(const std::string& text, size_t longest, int64_t most);
/// "a, b, c and d".
std::string in_words(const std::vector<std::string>& names);

template <typename C>
class ConfigTable {
  struct Row {
    const char* key = nullptr;
    std::function<const char*(const C&)> key_of = {};
    std::vector<const char*> also = {};
    std::function<bool(const C&)> applies = {}, is_written = {};
    bool is_custom = false;  // read when all other keys are read and within their limits
    bool is_required = false;
    double C::*dropout = nullptr;
    std::function<void(C&, const ConfigReader&, const char* key)> read = {};
    std::function<io::Json(const C&)> json = {};
    std::function<void(const C&, const ConfigLimits&, const char* key)> check = {};
    // The option that sets the field; Field::option() gives it names and a help text.
    OptionInfo info = {};
    std::function<void(C&, const std::string&, int64_t least)> set = {};
    std::function<std::string(const C&)> text = {};
  };

 public:
  /// `described`: the model that options describe when none is given.
  explicit ConfigTable(C described) : options_(std::move(described)) { options_.group("model"); }

  /// Refines the row that was added last.
  class Field {
   public:
    Field(ConfigTable& table, size_t row) : table_(table), row_(row) {}
    /// A file without the key is refused.
    Field& required() { return row().is_required = true, *this; }
    /// Keys that files may have instead; the first of all that is there counts.
    Field& also(std::vector<const char*> keys) { return row().also = std::move(keys), *this; }
    /// Files have the key where this holds.
    Field& when(std::function<bool(const C&)> applies) {
      return row().applies = std::move(applies), *this;
    }
    /// The caller checks the value, under the name that the file has for it.
    Field& unchecked() { return row().check = nullptr, *this; }
    /// Brrr writes the key where this holds.
    Field& written(std::function<bool(const C&)> is_written) {
      return row().is_written = std::move(is_written), *this;
    }
    /// Files of some model types have the key under another name.
    Field& named(std::function<const char*(const C&)> key) {
      return row().key_of = std::move(key), *this;
    }
    /// The option that sets the field; 0 is allowed where `least` says so: it is derived.
    Field& option(std::string name, std::string help, std::vector<std::string> aliases = {},
                  int64_t least = 1) {
      OptionInfo info = row().info;
      info.name = std::move(name);
      info.help = std::move(help);
      info.aliases = std::move(aliases);
      info.group = "model";
      auto& option = table_.options_.add(info);
      option.set = [set = row().set, least](C& c, const std::string& s) { set(c, s, least); };
      option.get = [text = row().text](const C& c) { return std::vector{text(c)}; };
      return *this;
    }

   private:
    Row& row() { return table_.rows_[row_]; }
    ConfigTable& table_;
    size_t row_;
  };

  using Integer = std::function<int64_t&(C&)>;
  using Real = std::function<double&(C&)>;

  /// A count from 1 to `most`.
  Field size(const char* key, Integer field, int64_t most) { return integer(key, field, 1, most); }
  /// A count from 0 to `most`; 0 is null in files.
  Field size_or_null(const char* key, Integer field, int64_t most) {
    Field f = integer(key, field, 0, most);
    rows_.back().read = [=](C& c, const ConfigReader& keys, const char* k) {
      if (keys.find(k) == nullptr) return;
      const auto value = keys.optional_integer(k);
      if (value && *value < 1)
        user_error("{}: {} must be positive or null; found {}", keys.what(), k, *value);
      field(c) = value.value_or(0);
    };
    rows_.back().check = [=](const C& c, const ConfigLimits& limits, const char* k) {
      const int64_t value = field(const_cast<C&>(c));
      if (value != 0) limits.size(k, value, most);
    };
    rows_.back().json = [=](const C& c) {
      const int64_t value = field(const_cast<C&>(c));
      return value > 0 ? io::Json(value) : io::Json();
    };
    return f;
  }
  Field integer(const char* key, Integer field, int64_t low, int64_t high) {
    Row& row = add(key, OptionKind::kInteger, "N");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      field(c) = keys.integer(k, field(c));
    };
    row.json = [=](const C& c) { return io::Json(field(const_cast<C&>(c))); };
    row.check = [=](const C& c, const ConfigLimits& limits, const char* k) {
      const int64_t value = field(const_cast<C&>(c));
      if (value < low || value > high)
        limits.fail(k,
                    low == high ? std::to_string(low) : fmt::format("between {} and {}", low, high),
                    value);
    };
    row.set = [=](C& c, const std::string& s, int64_t least) {
      field(c) = parse_integer(s, least, high);
    };
    row.text = [=](const C& c) { return std::to_string(field(const_cast<C&>(c))); };
    return {*this, rows_.size() - 1};
  }
  /// From 1 to `longest` counts, each from 1 to `most`: a list in files, "3,4,6" as an option.
  Field sizes(const char* key, std::vector<int64_t> C::*field, size_t longest, int64_t most) {
    Row& row = add(key, OptionKind::kText, "N,N...");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      if (keys.has(k)) c.*field = keys.integers(k);
    };
    row.json = [=](const C& c) { return io::Json(c.*field); };
    row.check = [=](const C& c, const ConfigLimits& limits, const char* k) {
      limits.size(fmt::format("the number of {}", k).c_str(), std::ssize(c.*field),
                  static_cast<int64_t>(longest));
      for (const int64_t size : c.*field) limits.size(k, size, most);
    };
    row.set = [=](C& c, const std::string& s, int64_t) {
      c.*field = parse_sizes(s, longest, most);
    };
    row.text = [=](const C& c) { return fmt::format("{}", fmt::join(c.*field, ",")); };
    return {*this, rows_.size() - 1};
  }
  /// A number that `range` allows; `expected` says so in words.
  Field real(const char* key, Real field, RealRange range, const char* expected) {
    Row& row = add(key, OptionKind::kReal, "X");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      field(c) = keys.number(k, field(c));
    };
    row.json = [=](const C& c) { return io::Json(field(const_cast<C&>(c))); };
    row.check = [=](const C& c, const ConfigLimits& limits, const char* k) {
      const double value = field(const_cast<C&>(c));
      const bool is_low = range.low_open ? !(value > range.low) : !(value >= range.low);
      const bool is_high = range.high_open ? !(value < range.high) : !(value <= range.high);
      if (is_low || is_high) limits.fail(k, expected, value);
    };
    row.set = [=](C& c, const std::string& s, int64_t) { field(c) = parse_real(s, range); };
    row.text = [=](const C& c) { return show_real(field(const_cast<C&>(c))); };
    return {*this, rows_.size() - 1};
  }
  /// The fields that every transformer has, and their options. A file without them is refused.
  Field layers(const char* key, Integer field) {
    Field f = size(key, std::move(field), 4096);
    return f.required().option("n-layer", "transformer blocks",
                               {"num-hidden-layers", "num-layers"});
  }
  Field heads(const char* key, Integer field) {
    Field f = size(key, std::move(field), 1 << 18);
    return f.required().option("n-head", "attention heads per block",
                               {"num-attention-heads", "num-heads"});
  }
  Field width(const char* key, Integer field) {
    Field f = size(key, std::move(field), 1 << 18);
    return f.required().option("n-embd", "width of the model", {"hidden-size"});
  }
  /// `derived`: how wide an MLP is of which no width is given.
  Field mlp_width(const char* key, Integer field, const std::string& derived) {
    Field f = size(key, std::move(field), 1 << 20);
    return f.required().option("intermediate-size", "width inside the MLP (0: " + derived + ")", {},
                               0);
  }
  Field tied(const char* key, bool C::*field) {
    return flag(key, field)
        .option("tie-word-embeddings", "tie the output head to the token embedding");
  }
  /// What norms add to a variance.
  Field epsilon(const char* key, Real field) {
    return real(key, field, {.low = 0, .high = 1, .low_open = true, .high_open = true},
                "between 0 and 1");
  }
  /// The standard deviation of initial weights.
  Field deviation(const char* key, Real field) {
    return real(key, field, {.low = 0, .high = 10}, "between 0 and 10");
  }
  /// A probability of dropping; --dropout sets all of them. The first row is the one that reports
  /// show.
  Field dropout(const char* key, double C::*field) {
    const Field f =
        real(key, field, {.low = 0, .high = 1, .high_open = true}, "a probability in [0, 1)");
    rows_.back().dropout = field;
    return f;
  }
  Field flag(const char* key, bool C::*field) {
    Row& row = add(key, OptionKind::kFlag, "");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      c.*field = keys.flag(k, c.*field);
    };
    row.json = [=](const C& c) { return io::Json(c.*field); };
    row.set = [=](C& c, const std::string& s, int64_t) { c.*field = parse_bool(s); };
    row.text = [=](const C& c) { return std::string(c.*field ? "true" : "false"); };
    return {*this, rows_.size() - 1};
  }
  /// One of an enumeration's values.
  template <typename E>
  Field choice(const char* key, E C::*field, const Spellings& all) {
    Row& row = add(key, OptionKind::kText, "NAME");
    for (const auto& spellings : all) row.info.choices.push_back(spellings[0]);
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      if (keys.has(k)) c.*field = static_cast<E>(read_choice(keys, k, all));
    };
    row.json = [=](const C& c) { return io::Json(all[static_cast<size_t>(c.*field)][0]); };
    row.set = [=](C& c, const std::string& s, int64_t) {
      c.*field = static_cast<E>(match_choice(s, all));
    };
    row.text = [=](const C& c) { return all[static_cast<size_t>(c.*field)][0]; };
    return {*this, rows_.size() - 1};
  }
  /// The token that begins or ends a text; outside the vocabulary: none, which files have as null.
  Field token(const char* key, int64_t C::*field) {
    Row& row = add(key, OptionKind::kInteger, "N");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      if (keys.find(k)) c.*field = keys.integer(k, -1);
    };
    row.json = [=](const C& c) { return ids_text({c.*field}, c.vocab_size); };
    return {*this, rows_.size() - 1};
  }
  Field tokens(const char* key, std::vector<int64_t> C::*field) {
    Row& row = add(key, OptionKind::kList, "N");
    row.read = [=](C& c, const ConfigReader& keys, const char* k) {
      if (keys.find(k)) c.*field = keys.integers(k);
    };
    row.json = [=](const C& c) { return ids_text(c.*field, c.vocab_size); };
    return {*this, rows_.size() - 1};
  }
  /// A key whose only supported value is the first of `spellings`, which files have and readers
  /// expect.
  Field constant(const char* key, std::vector<io::Json> spellings) {
    Field f = insisted(key, spellings);
    rows_.back().json = [value = spellings[0]](const C&) { return value; };
    return f;
  }
  /// The same, but files that Brrr writes leave it out.
  Field insisted(const char* key, std::vector<io::Json> spellings) {
    Row& row = add(key, OptionKind::kText, "");
    row.read = [=](C&, const ConfigReader& keys, const char* k) { keys.insist(k, spellings); };
    return {*this, rows_.size() - 1};
  }

  /// A key that the caller reads, unless `read` is empty, and writes. It is read behind all others,
  /// when these are within their limits.
  Field custom(const char* key, std::function<void(C&, const ConfigReader&)> read,
               std::function<io::Json(const C&)> json) {
    Row& row = add(key, OptionKind::kText, "");
    if (read)
      row.read = [read = std::move(read)](C& c, const ConfigReader& keys, const char*) {
        read(c, keys);
      };
    row.json = std::move(json);
    row.is_custom = true;
    return {*this, rows_.size() - 1};
  }

  /// The options that describe a model, with the defaults of `described`.
  const OptionTable<C>& options() const { return options_; }

  /// Reads every key over the defaults that `c` has. Throws UserError.
  void read(C& c, const ConfigReader& keys) const {
    read_rows(c, keys, false);
    try {
      check(c);
    } catch (const UserError& e) {
      user_error("{}: {}", keys.what(), e.what());
    }
    read_rows(c, keys, true);
  }
  /// Adds every key to `out`.
  void write(const C& c, io::Json& out) const {
    for (const Row& row : rows_)
      if (row.json && (!row.applies || row.applies(c)) && (!row.is_written || row.is_written(c)))
        out[key_of(row, c)] = row.json(c);
  }
  /// Throws UserError for a field outside of its limits.
  void check(const C& c) const {
    for (const Row& row : rows_)
      if (row.check && (!row.applies || row.applies(c))) row.check(c, c.limits(), key_of(row, c));
  }
  /// The keys that are read, whether Brrr writes them or not.
  std::vector<std::string> understood(const C& c) const {
    std::vector<std::string> keys;
    for (const Row& row : rows_) {
      if (row.applies && !row.applies(c)) continue;
      keys.emplace_back(key_of(row, c));
      keys.insert(keys.end(), row.also.begin(), row.also.end());
    }
    return keys;
  }
  void set_dropout(C& c, double probability) const {
    for (const Row& row : rows_)
      if (row.dropout != nullptr) c.*row.dropout = probability;
  }
  std::vector<double> dropouts(const C& c) const {
    std::vector<double> all;
    for (const Row& row : rows_)
      if (row.dropout != nullptr) all.push_back(c.*row.dropout);
    return all;
  }

 private:
  void read_rows(C& c, const ConfigReader& keys, bool custom) const {
    for (const Row& row : rows_) {
      if (row.is_custom != custom || (row.applies && !row.applies(c))) continue;
      const char* key = key_of(row, c);
      for (const char* other : row.also)
        if (!keys.has(key) && keys.has(other)) key = other;
      if (row.is_required && keys.find(key) == nullptr)
        user_error("{}: '{}' is missing; {}", keys.what(), key, needs(c));
      if (row.read) row.read(c, keys, key);
    }
  }
  std::string needs(const C& c) const {
    std::vector<std::string> keys;
    for (const Row& row : rows_)
      if (row.is_required) keys.emplace_back(key_of(row, c));
    return "the configuration needs " + in_words(keys);
  }
  Row& add(const char* key, OptionKind kind, const char* value) {
    Row& row = rows_.emplace_back();
    row.key = key;
    row.info.kind = kind;
    row.info.value = value;
    return row;
  }
  static const char* key_of(const Row& row, const C& c) {
    return row.key_of ? row.key_of(c) : row.key;
  }

  std::vector<Row> rows_;
  OptionTable<C> options_;
};

}  // namespace brrr::models
