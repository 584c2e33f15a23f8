#include <math.h>
#include <stdint.h>
#include <string.h>

void masked_integers(const int64_t *args, int64_t r0, int64_t r1, char *scratch) {
  int32_t v1; memcpy(&v1, &args[8], sizeof v1);
  int32_t v2; memcpy(&v2, &args[9], sizeof v2);
  int32_t v10; memcpy(&v10, &args[10], sizeof v10);
  for (int64_t r = r0; r < r1; r++) {
    const int64_t first = r * args[0], last = (r + 1) * args[0] < args[1] ? (r + 1) * args[0] : args[1];
    const int64_t p0 = args[2] + 0;
    int32_t *const p1 = (int32_t *)(intptr_t)args[4] + 0;
    int32_t *const p2 = (int32_t *)(intptr_t)args[6] + 0;
    for (int64_t j = first; j < last; j++) {
      const int64_t v0 = p0 + j;
      const int64_t v3 = (int64_t)v1;
      const int64_t v4 = (int64_t)v2;
      const int64_t v5 = (int64_t)((uint64_t)v4 * (uint64_t)v0);
      const int64_t v6 = (int64_t)((uint64_t)v3 + (uint64_t)v5);
      const int32_t v7 = (int32_t)v6;
      const int32_t v8 = p1[j];
      const uint8_t v9 = v7 < v8;
      const int32_t v11 = v9 ? v8 : v10;
      p2[j] = v11;
    }
  }
}
