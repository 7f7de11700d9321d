#include "support/ptx_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "support/ptx_program.h"

namespace brrr::test::ptx {

namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

}  // namespace

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (text.substr(i, 2) == "//") {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '"') {
      const size_t end = text.find('"', i + 1);
      if (end == std::string_view::npos) throw Error(fmt::format("line {}: an open string", line));
      tokens.push_back({std::string(text.substr(i, end + 1 - i)), line});
      i = end + 1;
    } else if (is_word(c)) {
      size_t end = i;
      while (end < text.size() &&
             (is_word(text[end]) || (text.substr(end, 2) == "::" && end + 2 < text.size())))
        end += text[end] == ':' ? 2 : 1;
      tokens.push_back({std::string(text.substr(i, end - i)), line});
      i = end;
    } else {
      tokens.push_back({std::string(1, c), line});
      ++i;
    }
  }
  return tokens;
}

uint32_t bytes_of_type(std::string_view type) {
  if (type == ".pred") return 4;
  const size_t digits = type.find_first_of("0123456789");
  if (type.size() < 3 || digits == std::string_view::npos) return 0;
  const int bits = std::atoi(std::string(type.substr(digits)).c_str());
  return bits == 8 || bits == 16 || bits == 32 || bits == 64 ? static_cast<uint32_t>(bits / 8) : 0;
}

std::string Program::at(uint32_t line) const {
  std::string text = line > 0 && line <= lines.size() ? lines[line - 1] : "";
  text.erase(0, text.find_first_not_of(" \t"));
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return fmt::format("line {}: {}", line, text);
}

bool Statement::has(std::string_view part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}
bool Statement::is(std::string_view first, std::string_view second) const {
  return parts[0] == first && (second.empty() || (parts.size() > 1 && parts[1] == second));
}

Value Decoder::literal(uint64_t bits, int width) {
  // A predicate's bits are the lanes' already.
  const size_t words = width == 1 ? 8 : static_cast<size_t>(width) / 2;
  std::vector<uint64_t> lanes(words);
  auto* bytes = reinterpret_cast<std::byte*>(lanes.data());
  if (width == 1)
    std::memcpy(bytes, &bits, 4);
  else
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(bytes + lane * width / 8, &bits, static_cast<size_t>(width) / 8);
  std::vector<uint64_t>& all = program->constants;
  const auto found = std::search(all.begin(), all.end(), lanes.begin(), lanes.end());
  const auto at = static_cast<uint32_t>((found - all.begin()) * 8);
  if (found == all.end()) all.insert(all.end(), lanes.begin(), lanes.end());
  return {at | Value::kConstant};
}
void Decoder::add_to_list(Value v) {
  program->lists.push_back(v);
  ++now->count;
}

}  // namespace brrr::test::ptx
