// Times our BPE encoder for bench/peers/tokenizer.py, which drives it through pipes so that its
// runs and the peer's alternate. Usage: bench_tokenizer FOLDER FILE [REPEAT]. Prints "load MS";
// then for every line read from stdin encodes FILE, REPEAT times end to end, once on one thread and
// prints "SECONDS TOKENS HASH" (FNV-1a over the ids as 32-bit words).

#include <cstdio>
#include <iostream>
#include <string>

#include "base/clock.h"
#include "base/errors.h"
#include "base/file.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace brrr;
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer FOLDER FILE [REPEAT]\n");
    return 2;
  }
  try {
    const Stopwatch loading;
    const auto tokenizer = io::load_tokenizer(argv[1]);
    std::printf("load %.2f\n", loading.milliseconds());
    std::fflush(stdout);
    const std::string once = read_file(argv[2]);
    std::string text;
    for (int i = 0; i < (argc > 3 ? std::stoi(argv[3]) : 1); ++i) text += once;
    std::string line;
    std::vector<int32_t> ids;
    while (std::getline(std::cin, line)) {
      ids.clear();
      const Stopwatch encoding;
      tokenizer->encode(text, ids);
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
