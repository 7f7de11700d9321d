#pragma once
// A profile as one page: self-contained, light and dark, for a screen, a phone or paper. It loads
// nothing: script, style and pictures stand in it.

#include <string>
#include <vector>

#include "insight/pages/page.h"
#include "insight/profile/profile.h"

namespace brrr::insight {

/// Every kernel in its place under the ceilings: SVG for inside a page, coloured by its classes.
std::string roofline_picture(const Profile& profile, PictureWidth width = PictureWidth::desk);

/// `memory`: the pictures of memory over the step, or empty ones.
std::string profile_page(const Profile& profile, const Pictures& memory);

}  // namespace brrr::insight
