// What an error quotes is made fit for a terminal in one place.
#include "base/errors.h"

#include <gtest/gtest.h>

namespace brrr {
namespace {

std::string said(const std::string& text) { return UserError(text).what(); }

TEST(UserError, ControlCharactersAreEscaped) {
  EXPECT_EQ(said("no file a\x1b[31m\nb"), "no file a\\x1b[31m\\x0ab");
  EXPECT_EQ(said(std::string("nul\0 and\x7f", 9)), "nul\\x00 and\\x7f");
  EXPECT_EQ(said("caf\xe9"), "caf\\xe9") << "not UTF-8";
  EXPECT_EQ(said("\xc2\x9b[31m"), "\\xc2\\x9b[31m") << "a terminal may take U+009B for an escape";
  EXPECT_EQ(said("\xe2\x80\xaetxt"), "\\xe2\\x80\\xaetxt") << "U+202E turns the direction";
  EXPECT_EQ(said("häuser 家 \xf0\x9f\x98\x80"), "häuser 家 \xf0\x9f\x98\x80");
}

TEST(UserError, OfALongTextTheBeginningAndTheEndAreKept) {
  const std::string middle(1 << 20, 'x');
  const std::string text = said("config.json: '" + middle + "' is no model; name another");
  EXPECT_LT(text.size(), 4100u);
  EXPECT_TRUE(text.starts_with("config.json: 'xxx"));
  EXPECT_TRUE(text.ends_with("xxx' is no model; name another"));
  EXPECT_NE(text.find(" bytes left out ...] "), std::string::npos);
  std::string wide;
  for (int i = 0; i < 3000; ++i) wide += "家";
  EXPECT_EQ(said("a" + wide + "b").find("\\x"), std::string::npos) << "no character is cut";
}

}  // namespace
}  // namespace brrr
