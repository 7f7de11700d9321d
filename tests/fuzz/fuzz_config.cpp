// Any text as a config.json: a UserError, or a configuration that survives being written and read
// again.
#include <string>
#include <string_view>

#include "base/errors.h"
#include "models/gpt2/gpt2_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brrr;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const models::ModelPtr model = models::parse_config(text, "input");
    BRRR_CHECK(model->parameter_count() > 0);
    const std::string written = model->config_json(DType::f32);
    try {
      const models::ModelPtr again = models::parse_config(written, "written");
      BRRR_CHECK(again->config_json(DType::f32) == written);
    } catch (const UserError& e) {
      BRRR_CHECK(false, "{}", e.what());
    }
  } catch (const UserError&) {
  }
  return 0;
}
