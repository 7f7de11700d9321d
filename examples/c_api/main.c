/* Continues a text with a model folder: c_api MODEL PROMPT. Compiles as C11 and as C++17. */
#include <brrr/brrr_c.h>
#include <stdio.h>

static int failed(const char* what) {
  fprintf(stderr, "c_api: %s: %s\n", what, brrr_last_error());
  return 1;
}

/* Prints text as it comes. */
static int on_text(void* context, size_t answer, const char* text) {
  (void)answer;
  fputs(text, (FILE*)context);
  fflush((FILE*)context);
  return 0;
}

/* Says how many tokens the prompt has. */
static int count_tokens(const char* model, const char* prompt) {
  brrr_tokenizer* tokenizer = NULL;
  brrr_tensor* ids = NULL;
  size_t bytes = 0;
  while (prompt[bytes] != '\0') ++bytes;
  if (brrr_tokenizer_open(model, &tokenizer) != BRRR_OK) return failed("the tokenizer");
  if (brrr_tokenizer_encode(tokenizer, prompt, bytes, 0, &ids) != BRRR_OK) {
    brrr_tokenizer_free(tokenizer);
    return failed("the prompt");
  }
  printf("%ld tokens of %ld\n", (long)brrr_tensor_sizes(ids)[0],
         (long)brrr_tokenizer_size(tokenizer));
  brrr_tensor_free(ids);
  brrr_tokenizer_free(tokenizer);
  return 0;
}

int main(int argc, char** argv) {
  const brrr_option options[] = {{"max-new-tokens", "40"}, {"temperature", "0"}};
  brrr_generator* generator = NULL;
  const char* prompts[1];
  char* answers[1] = {NULL};
  brrr_status status;
  if (argc != 3) {
    fprintf(stderr, "usage: c_api MODEL PROMPT\n");
    return 2;
  }
  if (brrr_require_abi(BRRR_ABI_VERSION) != BRRR_OK) return failed("the library");
  if (count_tokens(argv[1], argv[2]) != 0) return 1;
  if (brrr_generator_open(argv[1], options, 2, &generator) != BRRR_OK) return failed("the model");
  prompts[0] = argv[2];
  status = brrr_generate(generator, prompts, 1, on_text, stdout, answers);
  brrr_generator_free(generator);
  if (status != BRRR_OK) return failed("generation");
  printf("\n");
  brrr_text_free(answers[0]);
  return 0;
}
