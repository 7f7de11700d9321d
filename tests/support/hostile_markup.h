#pragma once
// Text that is markup, as it may stand anywhere in somebody else's run, and what a page that shows
// it must be like.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "support/browser.h"

namespace brrr::test {

/// Breaks out of a script, an attribute in either kind of quotes, a comment, a title and a style.
inline const std::string kHostileMarkup =
    "</script><script>hacked=1</script>\"><img src=x onerror=hacked=1>'><svg onload=hacked=1>"
    "--></title></style><iframe src=http://127.0.0.1:9/><!--";

/// Nothing of the page that is open is from the markup, which it shows as text, and it asked for
/// nothing but itself and, where there are two requests, its events.
inline void expect_harmless(Browser& browser, const std::string& url, size_t requests = 1) {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(browser.evaluate("typeof hacked"), "undefined") << url;
  EXPECT_EQ(browser.evaluate("document.querySelectorAll('img[src=x], iframe, [onload], [onerror]')"
                             ".length"),
            0)
      << url;
  EXPECT_EQ(browser.evaluate("document.body.textContent.includes('onerror=hacked=1')"), true)
      << url << " does not show the markup at all";
  EXPECT_TRUE(browser.complaints().empty()) << url << ": " << browser.complaints()[0];
  EXPECT_EQ(browser.requests().size(), requests) << url;
  for (const std::string& request : browser.requests())
    EXPECT_TRUE(request.starts_with(url)) << request;
}

}  // namespace brrr::test
