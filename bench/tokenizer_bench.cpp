// Times our tokenizers for bench/peers/tokenizer.py, which drives them through pipes so that their
// runs and the peer's alternate. Usage: bench_tokenizer FOLDER FILE [REPEAT | lines]. Prints "load
// MS"; then for every line read from stdin encodes FILE, REPEAT times end to end or line by line,
// once on one thread and prints "SECONDS TOKENS HASH" (FNV-1a over the ids as 32-bit words).

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/file.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace brrr;
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer FOLDER FILE [REPEAT | lines]\n");
    return 2;
  }
  try {
    const Stopwatch loading;
    const auto tokenizer = io::load_tokenizer(argv[1]);
    std::printf("load %.2f\n", loading.milliseconds());
    std::fflush(stdout);
    const std::string once = read_file(argv[2]);
    std::string text;
    const std::string how = argc > 3 ? argv[3] : "1";
    const bool by_lines = how == "lines";
    for (int i = 0; i < (by_lines ? 1 : std::stoi(how)); ++i) text += once;
    std::vector<std::string_view> parts = {text};
    if (by_lines) {
      parts.clear();
      for (std::string_view rest = text; !rest.empty();) {
        const size_t end = std::min(rest.find('\n'), rest.size());
        parts.push_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
    }
    std::string line;
    std::vector<int32_t> ids;
    while (std::getline(std::cin, line)) {
      ids.clear();
      const Stopwatch encoding;
      for (const std::string_view part : parts) tokenizer->encode(part, ids);
      const double seconds = encoding.seconds();
      uint64_t hash = 0xcbf29ce484222325u;
      for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 0x100000001b3u;
      std::printf("%.6f %zu %016llx\n", seconds, ids.size(), static_cast<unsigned long long>(hash));
      std::fflush(stdout);
    }
  } catch (const UserError& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
  return 0;
}
