// Continues prompts, the first one as it comes: generate FOLDER PROMPT...
#include <brrr/brrr.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc < 3) return std::fputs("usage: generate FOLDER PROMPT...\n", stderr), 2;
  auto generator = brrr::Generator::open(argv[1], {{"max-new-tokens", "60"}});
  const std::vector<std::string> prompts(argv + 2, argv + argc);
  const auto texts = generator.generate_all(prompts, [](size_t answer, std::string_view text) {
    if (answer == 0) std::fwrite(text.data(), 1, text.size(), stdout), std::fflush(stdout);
    return true;
  });
  for (size_t i = 1; i < texts.size(); ++i)
    std::printf("\n--- %s%s", prompts[i].c_str(), texts[i].c_str());
  std::printf("\n");
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
