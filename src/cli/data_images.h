#pragma once
// brrr data images: what a set of pictures holds.

#include "cli/commands.h"

namespace brrr::cli {

Command data_images_command();

}  // namespace brrr::cli
