// Any text as a config.json: a UserError, or a configuration that survives being written and read
// again.
#include <string_view>

#include "base/errors.h"
#include "folders/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    models::Gpt2Config config = io::parse_gpt2_config(text, "input");
    BRRR_CHECK(config.parameter_count() > 0);
    models::Gpt2Config again;
    try {
      again = io::parse_gpt2_config(io::gpt2_config_json(config), "written");
    } catch (const UserError& e) {
      BRRR_CHECK(false, "{}", e.what());
    }
    // Tokens outside the vocabulary are written as none.
    for (int64_t models::Gpt2Config::*token :
         {&models::Gpt2Config::bos_token_id, &models::Gpt2Config::eos_token_id})
      if (config.*token < 0 || config.*token >= config.vocab_size) config.*token = -1;
    BRRR_CHECK(again == config);
  } catch (const UserError&) {
  }
  return 0;
}
