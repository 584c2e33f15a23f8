// Every thread interprets its own program of bytes on a stack in local memory.
extern "C" __global__ void stack_machine(const unsigned char *code, const int *start, const int *input, int *output, int n) {
    int id = blockIdx.x * blockDim.x + threadIdx.x;
    if (id >= n) return;
    int stack[16], top = 0, steps = 0;
    const unsigned char *pc = code + start[id];
    bool run = true;
    while (run && steps++ < 200) {
        unsigned char op = *pc++;
        switch (op) {
            case 0: run = false; break;
            case 1: stack[top++ & 15] = *pc++; break;
            case 2: stack[top++ & 15] = input[id]; break;
            case 3: top--, stack[(top - 1) & 15] += stack[top & 15]; break;
            case 4: top--, stack[(top - 1) & 15] -= stack[top & 15]; break;
            case 5: top--, stack[(top - 1) & 15] *= stack[top & 15]; break;
            case 6: stack[top & 15] = stack[(top - 1) & 15], top++; break;
            case 7: {
                int a = stack[(top - 1) & 15];
                stack[(top - 1) & 15] = stack[(top - 2) & 15];
                stack[(top - 2) & 15] = a;
                break;
            }
            case 8: {
                int back = *pc++;
                if (stack[--top & 15] != 0) pc -= back;
                break;
            }
            case 9: stack[(top - 1) & 15] ^= 0x5a5a; break;
            default: stack[(top - 1) & 15] = -stack[(top - 1) & 15]; break;
        }
    }
    output[id] = stack[(top - 1) & 15];
}
