// Trains a small GPT on the characters of a text, by a loop of one's own: train_gpt TEXT [STEPS]
#include <brrr/brrr.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) try {
  if (argc < 2) return std::fputs("usage: train_gpt TEXT [STEPS]\n", stderr), 2;
  auto run = brrr::Run::from_env({.max_steps = argc > 2 ? std::stoll(argv[2]) : 200});
  auto [step, loader] = run.prepare(brrr::Model::preset("char-cpu"), brrr::AdamW{.lr = 1e-3},
                                    brrr::Data::text(argv[1]));
  std::printf("%.1f MiB planned\n", static_cast<double>(run.plan().arena_bytes) / (1 << 20));
  for (const auto& batch : loader) {
    const brrr::StepResult r = step(batch);
    if (r.step % 10 == 0) run.log(r);
  }
  std::printf("validation loss %.4f\n", run.evaluate());
  run.save("train_gpt_model");
  auto generator = brrr::Generator::open("train_gpt_model", {{"max-new-tokens", "80"}});
  std::printf("%s\n", generator.generate("\n").c_str());
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
