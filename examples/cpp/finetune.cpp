// Goes on with the model of a folder on another text and writes a new folder:
// finetune FOLDER TEXT OUT [STEPS]
#include <brrr/brrr.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) try {
  if (argc < 4) return std::fputs("usage: finetune FOLDER TEXT OUT [STEPS]\n", stderr), 2;
  auto run = brrr::Run::from_env(
      {.max_steps = argc > 4 ? std::stoll(argv[4]) : 100, .more = {{"batch-size", "4"}}});
  auto [step, loader] =
      run.prepare(brrr::Model::open(argv[1]), brrr::AdamW{.lr = 1e-4}, brrr::Data::text(argv[2]));
  const double before = run.evaluate();
  for (const auto& batch : loader) run.log(step(batch));
  std::printf("validation loss %.4f, before %.4f\n", run.evaluate(), before);
  run.save(argv[3]);
} catch (const brrr::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
