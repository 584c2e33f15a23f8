#include <math.h>
#include <stdint.h>
#include <string.h>

void scaled_sigmoid(const int64_t *args, int64_t r0, int64_t r1, char *scratch) {
  float v2; memcpy(&v2, &args[6], sizeof v2);
  for (int64_t r = r0; r < r1; r++) {
    const int64_t first = r * args[0], last = (r + 1) * args[0] < args[1] ? (r + 1) * args[0] : args[1];
    float *const p0 = (float *)(intptr_t)args[2] + 0;
    float *const p1 = (float *)(intptr_t)args[4] + 0;
    for (int64_t j = first; j < last; j++) {
      const float v0 = p0[j];
      const float v1 = 1.0f / (1.0f + expf(-v0));
      const float v3 = v1 * v2;
      p1[j] = v3;
    }
  }
}
